"""Arrival times of `vllm bench serve`, from its seed.

Knows the order in which that tool draws random numbers; knows no lengths and no service.
"""

import numpy as np
from numpy.typing import NDArray

MOST_SEED = 2**32 - 1
"""Largest seed of numpy's legacy generator, which that tool seeds."""


def bench_arrivals_s(
    requests: int, rate_qps: float, seed: int = 0, burstiness: float = 1.0
) -> NDArray[np.float64]:
    """Due times of `requests` requests in seconds from the start of the load, as `vllm bench serve` has them.

    Gaps are gamma distributed with the shape `burstiness` (1 is Poisson); the first gap precedes the first
    request. All times are scaled so that the last request is due at requests / rate_qps. It is the generator
    of vLLM 0.32.0 (`benchmarks/serve.py`, `get_request`) without a ramp: that tool's random prompts come from
    a generator of their own, so the gaps are the first numbers of numpy's global one. Raises ValueError for
    arguments that the tool could not draw.
    """
    if requests < 1 or not 0 < rate_qps < np.inf or not 0 < burstiness < np.inf:
        raise ValueError(
            f"arrivals of {requests} requests at {rate_qps:g} QPS with burstiness {burstiness:g}: all must "
            "be positive and finite"
        )
    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"seed={seed}: vllm bench serve takes 0 to {MOST_SEED}")
    gaps_s = np.random.RandomState(seed).gamma(burstiness, 1 / (rate_qps * burstiness), size=requests)
    due_s = np.cumsum(gaps_s)
    if due_s[-1] == 0:  # so bursty that every gap is zero in floating point: that tool scales nothing either
        return due_s
    return np.asarray(due_s * (requests / rate_qps / due_s[-1]), dtype=np.float64)
