"""The start of a search: guesses before the first request, and the first window; knows no outcome."""

from dataclasses import dataclass

from analysis.capacity.limit_posterior import Prior

FIRST_BELOW_PREDICTION, PREDICTION_SD = 0.05, 0.25
"""ln distance of the first window below a predicted capacity, and the prior's sd (our choice, simulated)."""
FIRST_BELOW_SESSIONS = 0.15
"""The same distance where users have cached prompts: an overload costs the caches too (simulated)."""


@dataclass(frozen=True, slots=True)
class Start:
    """Guesses before the first request, in QPS per node; None is unknown.

    `roofline_qps` is a guess that the ramp approaches from below; `prediction_qps` replaces the ramp where
    the search asks for it, and the first window is `first_below` (ln) below it. `ttft_s` is the TTFT bound
    and `answer_s` what an answer of mean length lasts where both bounds are just kept; 0 is unknown.
    """

    roofline_qps: float | None = None
    prediction_qps: float | None = None
    first_below: float = FIRST_BELOW_PREDICTION
    ttft_s: float = 0.0
    answer_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FirstWindow:
    """Prior and first rate per node of the windows after the ramp."""

    prior: Prior
    first_qps: float
    reason: str
