"""The spec of an accelerator."""

from dataclasses import dataclass
from typing import Literal

from conf.io.check import require_positive
from conf.specs.step_time import Efficiency


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Unknown figures are null, never zero, and cannot be used.

    `link_bytes_per_s` is one direction of one link; a `mesh` has `links` of them, one per peer;
    behind a `switch` one fat link per GPU is shared by all peers (`links` = 1).
    """

    name: str
    arch: str
    hbm_bytes: float
    hbm_bytes_per_s: float
    efficiency: Efficiency
    source: str
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    topology: Literal["mesh", "switch"] = "mesh"
    links: int = 7
    link_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        unknowable = ("bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s", "link_bytes_per_s")
        known = [name for name in unknowable if getattr(self, name) is not None]
        require_positive("hardware.", self, "hbm_bytes", "hbm_bytes_per_s", "links", *known)
