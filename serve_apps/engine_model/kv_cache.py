"""The pool of KV blocks of one engine: who holds how many; knows no scheduling and no contents yet."""


class KvCache:
    """`blocks` blocks of `block_size` tokens, all free at first.

    Raises ValueError unless there is at least one block.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        if blocks < 1:
            raise ValueError(
                f"a KV cache of {blocks} blocks serves nothing; set num_gpu_blocks to at least 1"
            )
        self.blocks = blocks
        self.block_size = block_size
        self.free_blocks = blocks
        self._held: dict[int, int] = {}

    @property
    def usage(self) -> float:
        """Share of the blocks in use, 0 to 1."""
        return 1 - self.free_blocks / self.blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def can_hold(self, tokens: int) -> bool:
        """Whether a request that holds nothing could get room for `tokens` now."""
        return self.blocks_for(tokens) <= self.free_blocks

    def allocate(self, request_id: int, tokens: int) -> int:
        """Give the request room for `tokens` in all; returns the room it then has, 0 if blocks lack.

        A request that cannot get all keeps what it holds.
        """
        held = self._held.get(request_id, 0)
        needed = max(self.blocks_for(tokens), held)
        if needed - held > self.free_blocks:
            return 0
        self.free_blocks -= needed - held
        self._held[request_id] = needed
        return needed * self.block_size

    def free(self, request_id: int) -> None:
        """Return all blocks of the request; one that holds none is ignored."""
        self.free_blocks += self._held.pop(request_id, 0)

    def check_integrity(self) -> None:
        """Raise AssertionError unless every block is either free or held by one request."""
        held = sum(self._held.values())
        if self.free_blocks < 0 or held + self.free_blocks != self.blocks:
            raise AssertionError(f"{held} held + {self.free_blocks} free blocks are not {self.blocks}")
