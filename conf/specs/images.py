"""The spec of images in requests, and their prompt tokens."""

from dataclasses import dataclass

from conf.io.check import require, require_not_negative

MOST_IMAGES = 5
"""Most images of a request, as in the MI325X paper's vision workloads; no figure was published for more."""
MOST_PX = 8192


@dataclass(frozen=True, slots=True)
class Images:
    """Synthetic images in the user message of every request; none by default.

    Each request has `least` to `most` of them, all counts equally likely, of `width_px` x `height_px`. With
    `unique` no two requests of a run share an image; otherwise all send the same ones, which a server finds
    in its caches from the second request on. `tokens` are the prompt tokens of one image, 0 until they are
    known from the model. They are added to `workload.input_tokens`, which are text.
    """

    least: int = 0
    most: int = 0
    width_px: int = 1024
    height_px: int = 1024
    unique: bool = True
    tokens: int = 0

    def __post_init__(self) -> None:
        require(
            0 <= self.least <= self.most <= MOST_IMAGES,
            f"workload.images: least={self.least} and most={self.most} must be 0 to {MOST_IMAGES}, the least "
            "not above the most",
        )
        for name in ("width_px", "height_px"):
            value = getattr(self, name)
            require(1 <= value <= MOST_PX, f"workload.images.{name}={value} must be 1 to {MOST_PX}")
        require_not_negative("workload.images.", self, "tokens")

    @property
    def mean_tokens(self) -> float:
        """Mean image tokens of a request."""
        return (self.least + self.most) / 2 * self.tokens


def tokens_of(width_px: int, height_px: int, token_px: int) -> int:
    """Prompt tokens of one image: squares of `token_px` pixels a side that cover it.

    Patches of 16 (Qwen3-VL) or 14 pixels (Kimi), merged two by two, make 1024 and 1369 tokens of 1024 x 1024
    pixels: with some 115 tokens of text and template, the 1141 and 1483 of the MI325X paper. That processors
    round sizes to whole squares and shrink large images is not modelled.
    """
    return -(-width_px // token_px) * -(-height_px // token_px)
