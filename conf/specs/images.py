"""The spec of images in requests, and how many prompt tokens a model makes of them."""

from dataclasses import dataclass

from conf.io.check import require

MOST_IMAGES = 5
"""As the MI325X paper's vision workloads; of more nobody published a figure."""
MOST_PX = 8192


@dataclass(frozen=True, slots=True)
class Images:
    """Synthetic images in the user message of every request; none by default.

    Each request has `least` to `most` of them, all counts equally likely, of `width_px` x `height_px`. With
    `unique` no two requests of a run have one in common; without, all send the same ones, which a server
    finds in its caches from the second request on. `tokens` is what the model makes of one image; 0 until
    the model is asked. They come on top of `workload.input_tokens`, which are text.
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
        require(self.tokens >= 0, f"workload.images.tokens={self.tokens} must not be negative")

    @property
    def mean_tokens(self) -> float:
        """Image tokens of a request, in the mean."""
        return (self.least + self.most) / 2 * self.tokens


def tokens_of(width_px: int, height_px: int, token_px: int) -> int:
    """Prompt tokens of one image: squares of `token_px` pixels a side that cover it.

    Patches of 16 (Qwen3-VL) or 14 pixels (Kimi), merged two by two: of 1024 x 1024 pixels 1024 and 1369,
    which with some 115 tokens of text and template are the 1141 and 1483 of the MI325X paper. Processors
    round the size to whole squares, and scale down what is too large for them, which is not modelled.
    """
    return -(-width_px // token_px) * -(-height_px // token_px)
