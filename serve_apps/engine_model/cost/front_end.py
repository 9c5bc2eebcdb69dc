"""The serial front end of an engine: requests pass it one after the other before they queue.

Knows seconds on the engine's clock; knows no request and no scheduler.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def free_again_s(now_s: float, free_s: float, work_s: float) -> float:
    """End of the work on a request that comes at `now_s`, while the front end is busy until `free_s`.

    A function of plain numbers, so that numba can compile it for the fast engine.
    """
    return max(now_s, free_s) + work_s


def all_through_s(sent_s: Floats, work_s: float) -> Floats:
    """`free_again_s` of many requests in order of arrival, each with the same work."""
    busy_s: Floats = work_s * np.arange(len(sent_s), dtype=np.float64)
    through_s: Floats = busy_s + np.maximum.accumulate(sent_s - busy_s) + work_s
    return through_s


def burst_through_s(count: int, work_s: float) -> Floats:
    """`free_again_s` of `count` requests that all come at 0."""
    through_s: Floats = np.arange(1, count + 1, dtype=np.float64) * work_s
    return through_s
