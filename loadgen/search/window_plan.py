"""Windows of load and what became of them, and which of them were overloaded.

Source of the constants: the method, sections 4.1 and 4.2, where no other is named.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from analysis.capacity.limit_posterior import OVERLOADED_SHARE, Prior
from analysis.capacity.rules import ROWS_ALONE, VALID, Verdict, WindowEvidence
from analysis.capacity.window_counts import NS, Window, WindowCounts
from analysis.rows import records
from analysis.rows.failures import NEARLY_ALL
from conf.specs.bounds import LIMITS, Limit, Slo, allowed_over, label, metric_of


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

    @property
    def felt_a_loss(self) -> bool:
        """True if the service was lost in it, or a host could not be reached."""
        evidence = self.evidence
        return bool(evidence.loss or evidence.lost_load_hosts or evidence.lost_nodes)


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


BAD_TTFT_SHARE, BAD_TPOT_SHARE, BAD_LEAST = 0.15, 0.20, 4
"""Shares over a bound on p90 TTFT, and on a p90 of another latency, that make a ramp step bad, and the fewest
requests: at 1 QPS one stall of a second delays two of twelve."""
ABORT_FROM_S, ABORT_EVERY_S = 10.0, 5.0
ABORT_WAITING_TTFTS, ABORT_WAITING = 3.0, 10
RAMP_LOOK_S = 1.0
PLAIN_TTFTS, PLAIN_WAITING = 2.0, 10
"""TTFT bounds that an overload's queue takes to clear, and its fewest requests (our choice)."""


def bad_step(counts: WindowCounts) -> bool:
    """True if a ramp step, counted at its end, was overloaded: too many requests over a bound."""
    judged = ((counted, _bad_share(limit), _seen(counts, limit)) for limit, counted in counts.limits.items())
    return any(
        counted.over > share * requests and (counted.over >= BAD_LEAST or counted.over == requests)
        for counted, share, requests in judged
    )


def _bad_share(limit: Limit) -> float:
    """Share over a bound that makes a ramp step bad: in proportion to the share that may be over."""
    share = BAD_TTFT_SHARE if metric_of(limit) == "ttft" else BAD_TPOT_SHARE
    return share * allowed_over(limit) / allowed_over(LIMITS[0])


def _seen(counts: WindowCounts, limit: Limit) -> float:
    """Requests that a bound's share is one of: who waits for a first token is within its bound so far."""
    return counts.requests if metric_of(limit) == "ttft" else counts.over(limit).determined


def plainly_bad(counts: WindowCounts, waiting: int, seconds: float, slo: Slo) -> str | None:
    """Reason why a ramp step is bad whatever follows its first `seconds`, counted in `counts`; else None.

    Either more requests are over a bound than would make the whole step bad, or the `waiting` ones would take
    several TTFT bounds at the pace at which first tokens came so far.
    """
    whole = counts.rate_qps * (counts.planned_end_ns - counts.window_start_ns) / NS
    for limit, counted in counts.limits.items():
        if counted.over >= max(BAD_LEAST, _bad_share(limit) * whole):
            return f"{counted.over:.0f} requests are over the bound on {label(limit)}"
    clear_s = _clear_s(counts, waiting, seconds)
    if waiting >= PLAIN_WAITING and clear_s > PLAIN_TTFTS * slo.first_token_ms / 1e3:
        return f"{waiting} requests wait for a first token, worth {clear_s:.0f} s"
    return None


def long_queue(counts: WindowCounts, waiting: int, slo: Slo) -> bool:
    """True if the next request would wait beyond the TTFT bound behind those `waiting` at a step's end."""
    return waiting >= BAD_LEAST and _clear_s(counts, waiting) > slo.first_token_ms / 1e3


def _clear_s(counts: WindowCounts, waiting: int, seconds: float | None = None) -> float:
    """Seconds until `waiting` requests have a first token, at the pace of the others in `seconds`."""
    return waiting * (counts.seconds if seconds is None else seconds) / max(counts.requests - waiting, 1)


def should_abort(window: Window, waiting: int, slo: Slo) -> str | None:
    """Reason to end a window now, with so many `waiting` for a first token; None to go on.

    Requests over a bound are no reason: ending bursts early biases the capacity upwards (simulated).
    """
    queue = ABORT_WAITING_TTFTS * slo.first_token_ms / 1e3 * window.rate_qps + ABORT_WAITING
    if waiting > queue:
        return f"{waiting} requests wait for a first token (bound {queue:.0f})"
    return None
