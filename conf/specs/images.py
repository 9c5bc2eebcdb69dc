"""The spec of images in requests, and their prompt tokens."""

from dataclasses import dataclass
from typing import Annotated

from conf.io.check import require
from conf.specs.ranges import Range, Whole

MOST_IMAGES = 5
"""Most images of a request, as in the MI325X paper's vision workloads; no figure was published for more."""
MOST_PX = 8192
_Count = Annotated[int, Range(ge=0, le=MOST_IMAGES)]
_Side = Annotated[int, Range(ge=1, le=MOST_PX)]


@dataclass(frozen=True, slots=True)
class Images:
    """Synthetic images in the user message of every request; none by default.

    Each request has `least` to `most` of them, all counts equally likely, of `width_px` x `height_px`. With
    `unique` no two requests of a run share an image; otherwise all send the same ones, which a server finds
    in its caches from the second request on. `tokens` are the prompt tokens of one image, 0 until they are
    known from the model. They are added to `workload.input_tokens`, which are text.
    """

    least: _Count = 0
    most: _Count = 0
    width_px: _Side = 1024
    height_px: _Side = 1024
    unique: bool = True
    tokens: Whole = 0

    def __post_init__(self) -> None:
        require(
            self.least <= self.most,
            f"workload.images.least={self.least} must not be above workload.images.most={self.most}",
        )

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
