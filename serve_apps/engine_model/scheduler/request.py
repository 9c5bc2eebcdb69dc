"""One request inside an engine: its progress and the times of its tokens; decides nothing."""

from dataclasses import dataclass
from typing import Literal

from serve_apps.engine_model.scheduler.kv_cache import Chain, Holding

Kv = Literal["own", "held", "remote"]
"""Whose KV a request decodes with: its own; its own, which another engine takes over; another engine's."""


@dataclass(slots=True)
class StepProgress:
    """Steps scheduled and completed so far; the last completed one ended at `at_s`."""

    scheduled: int = 0
    completed: int = 0
    at_s: float = 0.0


class RequestState:
    """The state of one request inside an engine; other modules read the names without an underscore.

    A decoder gets one output token in every step: after `n` steps it has `_ahead + n` of them, once it
    has joined the others, at `_joined` tokens, and until it leaves them, at `_most`.
    """

    __slots__ = (
        "_ahead",
        "_computed",
        "_decoding",
        "_first_s",
        "_held",
        "_joined",
        "_last_s",
        "_last_step",
        "_most",
        "_order",
        "_own_tokens",
        "_progress",
        "cached_tokens",
        "first_step",
        "kv",
        "output_tokens",
        "prompt_tokens",
        "queued_s",
        "request_id",
        "scheduled_s",
        "tokens_to_load",
    )

    def __init__(
        self,
        request_id: int,
        prompt_tokens: int,
        output_tokens: int,
        progress: StepProgress,
        hashes: Chain = (),
        kv: Kv = "own",
    ) -> None:
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.cached_tokens = -1
        """Prompt tokens that had their KV when first admitted, another engine's included; -1 before."""
        self.kv = kv
        """`remote` until its blocks are taken: a request that is preempted after that is computed here."""
        self.tokens_to_load = 0
        """Prompt tokens of which another engine's KV is awaited, or was."""
        self.first_step = 0
        """Number of the step in which its computation began, after a preemption anew; 0 before."""
        self.queued_s: float | None = None
        """The time at which the scheduler found it, as it chose a step; None before."""
        self.scheduled_s: float | None = None
        """The time of its first place in a step; None before."""
        self._own_tokens = prompt_tokens
        """Tokens beyond these are decoded; the last one of a prompt whose KV was loaded is one of them."""
        self._progress = progress
        self._held = Holding(hashes)
        self._computed = 0
        self._decoding = False
        self._ahead = self._joined = self._most = self._order = 0
        self._last_step = 0  # that computed it, unless it decodes
        self._first_s: float | None = None
        self._last_s: float | None = None

    @property
    def emitted(self) -> int:
        """Output tokens that exist."""
        return self._emitted_after(self._progress.completed)

    @property
    def finished(self) -> bool:
        return self.emitted == self.output_tokens

    @property
    def first_token_s(self) -> float | None:
        return self._first_s

    @property
    def last_token_s(self) -> float | None:
        """Time of the latest emitted token; None before the first."""
        return self._progress.at_s if self._decoding and self.emitted > self._joined else self._last_s

    @property
    def queue_s(self) -> float | None:
        """Time in the scheduler's queue, up to the first step that computes it; None before that."""
        if self.queued_s is None or self.scheduled_s is None:
            return None
        return self.scheduled_s - self.queued_s

    @property
    def _scheduled(self) -> int:
        """Output tokens that exist or are being computed."""
        return self._ahead + self._progress.scheduled if self._decoding else self._most

    def _decode_from(self, step: int) -> None:
        """The next token is computed in `step`, and one more in each that follows."""
        self._joined = self._most
        self._ahead = self._most + 1 - step
        self._most = self.output_tokens
        self._decoding = True

    @property
    def _missing(self) -> int:
        """Tokens to compute before a request that does not decode gets its next one."""
        return self.prompt_tokens + self._most - self._computed

    @property
    def _context(self) -> int:
        """Tokens of a decoder that have their KV, those of the steps in flight included."""
        return self.prompt_tokens + self._scheduled - 1

    def _hashed(self, block_size: int) -> int:
        """Full blocks that vLLM has hashed: all of known tokens, a step later where they are still computed.

        A token in flight is unknown when the step after it is scheduled, so its block is hashed only then.
        """
        computed = self._context if self._decoding else self._computed
        scheduled = self._scheduled
        unknown = scheduled > self.emitted and scheduled > self._joined + 1
        return (computed - unknown) // block_size

    def _emitted_after(self, steps: int) -> int:
        return max(self._joined, min(self._most, self._ahead + steps))

    def _emits_in(self, step: int) -> bool:
        return self._joined < self._ahead + step <= self._most
