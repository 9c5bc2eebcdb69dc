"""The blocks of time whose load the requests of one block feel, and the mean load offered in them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.capacity.window_counts import BLOCK_S, LOOK_AHEAD, LOOK_BACK, WindowCounts
from analysis.stats.quantiles import Floats
from conf.specs.bounds import QUANTILE, Limit, metric_of, quantile_of

FIRST_TOKEN, LATE_FIRST_TOKEN = ((2.5, 0.0),), ((2.5, 0.0), (5.0, 0.0))
TOKENS = (1.5, 1.0), (3.0, 1.0), (6.0, 1.0)
KERNEL_E2E: dict[str, tuple[tuple[float, float], ...]] = {
    "ttft": FIRST_TOKEN,
    "tpot": TOKENS,
    "itl": TOKENS,
    "itl_pooled": TOKENS,
    "e2e": TOKENS,
    "queue": FIRST_TOKEN,
    "joint": (*TOKENS, *FIRST_TOKEN),
}
"""Reach of the load back and ahead of a block, in median durations of an answer: a first token
waits for what came before, an answer also shares its steps with what comes after. Over 40 virtual hours the
first of each leaves 0.11 to 0.26 of the long-run variance of the share; one load per 45 s window leaves 0.5
to 0.58. Where answers are nearly all decoding, a burst slows the batch that it is in, and is remembered for
longer: the data weigh the reaches. So they do for the queues that make the rarest first tokens late: with
both reaches the RMSE of p99 TTFT in 30 minutes falls from 3.3 to 2.6 %, and the cover rises from .80 to .88
(60 searches)."""
LEAST_REQUESTS_FELT = 20.0
"""Fewest requests expected within a kernel: the load of fewer is chance alone, and its logarithm reaches
far down. Where one request is served at a time 5 cover in 78 to 98 %, 10 in 78 to 98 and 20 in 95 to 98
(40 runs each at 0.07, 0.6 and 0.75 requests/s, simulated)."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The blocks whose mean load the requests of a block feel: `back`, its own the last, and `ahead`."""

    back: int
    ahead: int

    @classmethod
    def of(cls, limit: Limit, e2e_s: float, rate_qps: float = math.inf, reach: int = 0) -> "Kernel":
        """The reach for answers that last `e2e_s` at `rate_qps` of the service, as far as windows know."""
        back, ahead = (round(part * e2e_s / BLOCK_S) for part in _reaches(limit)[reach])
        ahead = min(ahead, LOOK_AHEAD)
        least = math.ceil(LEAST_REQUESTS_FELT / (rate_qps * BLOCK_S)) if rate_qps > 0 else 1
        return cls(min(max(back, least - ahead, 1), LOOK_BACK + 1), ahead)

    @classmethod
    def all_of(cls, limit: Limit, e2e_s: float, rate_qps: float) -> tuple["Kernel", ...]:
        """Every kernel that a limit may have, each once, the shortest first."""
        reaches = range(len(_reaches(limit)))
        return tuple(dict.fromkeys(cls.of(limit, e2e_s, rate_qps, reach) for reach in reaches))

    @property
    def seconds(self) -> float:
        return (self.back + self.ahead) * BLOCK_S


def _reaches(limit: Limit) -> tuple[tuple[float, float], ...]:
    late = metric_of(limit) in ("ttft", "queue") and quantile_of(limit) > QUANTILE
    return LATE_FIRST_TOKEN if late else KERNEL_E2E[metric_of(limit)]


def log_loads(windows: Sequence[WindowCounts], kernels: Sequence[Kernel]) -> list[Floats]:
    """ln of the mean load around each block of the windows, per kernel; nan where none was offered."""
    back, ahead = (max(reach) for reach in zip(*((k.back, k.ahead) for k in kernels), strict=True))
    # No more of each window than some kernel needs: for short answers that is a small part.
    first, last = LOOK_BACK + 1 - back, LOOK_AHEAD - ahead
    parts = [window.load[first : len(window.load) - last] for window in windows]
    load = np.array([rate for part in parts for rate in part], dtype=np.float64)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    place = np.arange(len(load)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    end = np.flatnonzero((place >= back - 1) & (place < np.repeat(sizes, sizes) - ahead)) + 1
    unknown = np.isnan(load)
    known = np.concatenate([[0], np.cumsum(~unknown)])
    total = np.concatenate([[0.0], np.cumsum(np.where(unknown, 0.0, load))])
    means = []
    for kernel in kernels:
        low, high = end - kernel.back, end + kernel.ahead
        mean = (total[high] - total[low]) / np.maximum(known[high] - known[low], 1)
        means.append(np.log(np.where(mean > 0, mean, np.nan)))
    return means
