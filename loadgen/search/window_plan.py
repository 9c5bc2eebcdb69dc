"""Windows of load and what became of them: the words in which a search decides."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from analysis.capacity.limit_posterior import OVERLOADED_SHARE, Prior
from analysis.capacity.rules import WindowEvidence
from analysis.capacity.validity import ROWS_ALONE, VALID, Verdict
from analysis.capacity.window_counts import WindowCounts
from analysis.rows import records
from analysis.rows.failures import NEARLY_ALL


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The load to offer next. `rate_qps` is per node; `settle_before` lets the waiting queue empty first.

    After the first `lead_s` it has the arrivals and lengths of window `pair` if that is given.
    """

    index: int
    kind: Literal["ramp", "window", "hold"]
    rate_qps: float
    transition_s: float
    window_s: float
    settle_before: bool
    reason: str
    pair: int | None = None
    lead_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """A window that was run, counted and judged as known now: its `counts` have weight 0 if it is void.

    `bad` is the judgement of a ramp step when it ended (`bad_step`); like its `void` it is kept, never
    recomputed: late finishers would change it, and with it the replay. `parts` are the counts of each node
    where each has its own stream: the posterior rests on them, all else on `counts`. `rows` are the requests
    that were due in it, `evidence` what was judged beside them; windows with the same counts are equal.
    """

    plan: WindowPlan
    counts: WindowCounts
    void: bool = False
    bad: bool = False
    parts: tuple[WindowCounts, ...] = ()
    rows: pa.Table = field(default_factory=records.PROGRESS.empty_table, compare=False)
    verdict: Verdict = field(default=VALID, compare=False)
    evidence: WindowEvidence = field(default=ROWS_ALONE, compare=False)

    @property
    def index(self) -> int:
        return self.plan.index

    @property
    def aborted(self) -> bool:
        """True if it was ended early."""
        return self.counts.aborted


@dataclass(frozen=True, slots=True)
class Stop:
    """No further window, and why."""

    kind: Literal["budget", "slo_not_met_at_lowest", "above_highest", "void", "actor_lost"]
    reason: str


def counted_windows(outcomes: Sequence[MeasuredWindow]) -> list[WindowCounts]:
    """Windows that the posterior rests on: those not void, node by node where each has its own stream."""
    return [
        counts for outcome in outcomes if not outcome.void for counts in outcome.parts or (outcome.counts,)
    ]


def nearly_all_failed(counts: WindowCounts) -> bool:
    """True if hardly a request of a window was answered whole."""
    return counts.failed > 0 and counts.failed >= NEARLY_ALL * counts.requests


def overloaded(outcome: MeasuredWindow) -> bool:
    """True if a window ended early or most of its requests were over a bound."""
    return outcome.aborted or share_over(outcome) > OVERLOADED_SHARE


def share_over(outcome: MeasuredWindow) -> float:
    """The largest of a window's shares over its bounds."""
    return max((counted.share or 0.0 for counted in outcome.counts.limits.values()), default=0.0)


FIRST_BELOW_PREDICTION, PREDICTION_SD = 0.05, 0.25
"""ln distance of the first window below a predicted capacity, and the prior's sd (our choice, simulated)."""
FIRST_BELOW_SESSIONS = 0.15
"""The same distance where users have cached prompts: an overload costs the caches too (simulated)."""


@dataclass(frozen=True, slots=True)
class Start:
    """Guesses before the first request, in QPS per node; None is unknown.

    `roofline_qps` is a guess that the ramp approaches from below; `prediction_qps` replaces the ramp where
    the search asks for it, and the first window is `first_below` (ln) below it. `ttft_s` is the TTFT bound
    and `answer_s` what an answer of mean length lasts where the bounds are just kept; 0 is unknown.
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
