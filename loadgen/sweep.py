"""Drives the search over a target: offers segments, keeps every row, recounts dwells, judges windows.

Knows the seam `Target`, the search and the analysis; knows neither HTTP nor Ray nor engines. All
randomness comes from the schedule's seed, so the same rows give the same decisions again.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from analysis import metrics, records
from analysis.capacity import Capacity, posterior
from analysis.dwell import Window, count, in_window, tpot_so_far, ttft_so_far, waiting
from analysis.quantiles import quantile
from analysis.validity import Verdict, judge_dwell
from conf.schema import Search, Slo, Workload
from loadgen.arrivals import NS, ArrivalSchedule, Ints, draw, evenly
from loadgen.search import (
    ABORT_EVERY_S,
    ABORT_FROM_S,
    Outcome,
    Segment,
    Start,
    Stop,
    bad_step,
    next_segment,
    prior,
    should_abort,
)
from loadgen.target import Observation, Target

BRIDGE_NS = 1 * NS
"""Arrivals at the old rate go on this long after a window, so that deciding never leaves a gap."""
LEAD_NS = NS // 5
"""A schedule reaches the load actors at least this long before its first send."""
WARMUP_QPS = 4.0
"""Highest rate of the warm-up; a service that is thought slower gets half of what is thought."""
WARMUP_LIMIT_S = 600.0
DEAD_SHARE, DEAD_LEAST = 0.9, 5
"""A window in which this share of at least so many ended requests failed has no service behind it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked of a sweep. `replicas` are the ids expected in answers, None if unknown."""

    search: Search
    slo: Slo
    workload: Workload
    nodes: int
    seed: int
    start: Start
    warmup_requests: int = 0
    replicas: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep found: the outcomes in order, the posterior, and why it ended."""

    outcomes: list[Outcome]
    capacity: Capacity | None
    stop: Stop
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Watched:
    """What was seen of the load actors during a window: health per actor, mean in flight, actors lost."""

    health: dict[str, dict[str, float]]
    in_flight: float | None
    lost_actors: list[str]


class TargetLost(RuntimeError):
    """The service behind the target is gone or is no longer the one that was deployed."""


@dataclass(slots=True)
class Driver:
    """One run over a target.

    `emit(kind, **facts)` is told every decision, `plan_saved` every schedule before its first send;
    `fault` says why the deployment is no longer whole, or None while it is.
    """

    target: Target
    plan: Plan
    emit: Callable[..., None]
    plan_saved: Callable[[ArrivalSchedule], None] = lambda _: None
    fault: Callable[[], str | None] = lambda: None
    outcomes: list[Outcome] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    _rows: dict[int, dict[int, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))
    _due_ns: dict[int, Ints] = field(default_factory=dict)
    _next_seq: int = 0
    _free_ns: int = 0
    _health: list[dict[str, dict[str, float]]] = field(default_factory=list)
    _lost_actors: list[str] = field(default_factory=list)
    _touched: set[int] = field(default_factory=set)
    _watched: dict[int, Watched] = field(default_factory=dict)

    def sweep(self) -> Sweep:
        """Search for the capacity until the budget or the search ends it."""
        self._warm_up()
        began_ns = self._free_ns
        while True:
            elapsed_s = (self._free_ns - began_ns) / NS
            step = next_segment(self.plan.search, self.plan.start, self.outcomes, elapsed_s)
            if self._lost_actors:
                step = Stop("void", f"{' and '.join(self._lost_actors)} died: nothing more can be measured")
            if isinstance(step, Stop):
                self._drain()
                self.emit("stop", stop=step.kind, text=f"end of search: {step.reason}", elapsed_s=elapsed_s)
                return Sweep(self.outcomes, self._capacity(), step, elapsed_s)
            self._segment(step)

    def hold(self, rate_qps: float, duration_s: float, transition_s: float) -> None:
        """Hold one rate per node for `duration_s` after a transition, without a search."""
        self._warm_up()
        segment = Segment(0, "dwell", rate_qps, transition_s, duration_s, False, "the rate that was asked")
        self._segment(segment, may_abort=False)
        self._drain()

    def requests(self, index: int) -> pa.Table:
        """Rows of a segment and of the one before, as known now; those in flight are `pending`."""
        return records.table([row for i in (index - 1, index) for row in self._rows[i].values()])

    def _warm_up(self) -> None:
        """Untimed requests of the real shape, until all are answered."""
        self._free_ns = max(self._free_ns, self.target.now_ns() + LEAD_NS)
        if not self.plan.warmup_requests:
            return
        guess = self.plan.start.prediction_qps or self.plan.start.roofline_qps or WARMUP_QPS
        gap_ns = int(NS / min(WARMUP_QPS, guess * self.plan.nodes / 2))
        wanted = self.plan.warmup_requests
        schedule = evenly(wanted, self._free_ns, gap_ns, self.plan.workload, self.plan.seed)
        self._offer(schedule, int(schedule.due_ns[-1]) + NS)
        self._settle(-1, WARMUP_LIMIT_S, until_done=True)
        states = Counter(row["status"] for row in self._rows[-1].values())
        counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        self.emit("warm", text=f"warm-up: {len(schedule)} requests, {counted}")
        self._refuse_dead(list(self._rows[-1].values()), least=1)

    def _segment(self, segment: Segment, may_abort: bool = True) -> None:
        """Offer one segment, watch it, and add its outcome."""
        if segment.settle_before and self.outcomes:
            self._settle(self.outcomes[-1].segment.index, self.plan.search.settle_s)
        window = self._window(segment)
        self.emit(
            "segment",
            index=segment.index,
            kind=segment.kind,
            rate_qps_per_node=segment.rate_qps,
            transition_s=segment.transition_s,
            window_s=segment.window_s,
            reason=segment.reason,
            start_s=window.start_ns / NS,
        )
        self._offer(self._draw(window), window.window_start_ns)
        self._health = []
        reason = self._watch(window) if may_abort and segment.kind == "dwell" else None
        if not reason:
            self._take(self.target.run(None, window.planned_end_ns))
        now_ns = self.target.now_ns() if reason else window.planned_end_ns
        if reason:
            self.target.retract()
            window = dataclasses.replace(window, window_end_ns=now_ns, aborted=True)
            self.emit("abort", index=segment.index, text=f"dwell {segment.index} ended early: {reason}")
        self._free_ns = now_ns if reason else window.planned_end_ns + BRIDGE_NS
        self._close(segment, window, now_ns)

    def _window(self, segment: Segment) -> Window:
        start_ns = max(self._free_ns, self.target.now_ns() + LEAD_NS)
        begin_ns = start_ns + int(segment.transition_s * NS)
        end_ns = begin_ns + int(segment.window_s * NS)
        rate_qps = segment.rate_qps * self.plan.nodes
        return Window(
            segment.index, segment.kind, rate_qps, self.plan.nodes, start_ns, begin_ns, end_ns, end_ns
        )

    def _draw(self, window: Window) -> ArrivalSchedule:
        inner = "ramp" if window.kind == "ramp" else "window"
        bounds = {
            "transition": (window.start_ns, window.window_start_ns),
            inner: (window.window_start_ns, window.planned_end_ns),
            "bridge": (window.planned_end_ns, window.planned_end_ns + BRIDGE_NS),
        }
        return draw(
            window.rate_qps,
            bounds,
            self.plan.workload,
            dwell=window.index,
            first_seq=self._next_seq,
            seed=self.plan.seed,
        )

    def _offer(self, schedule: ArrivalSchedule, until_ns: int) -> None:
        self.plan_saved(schedule)
        self._due_ns[schedule.dwell] = schedule.due_ns
        self._next_seq += len(schedule)
        self._take(self.target.run(schedule, until_ns))

    def _watch(self, window: Window) -> str | None:
        """Let the window pass in slices; returns why it should end early, or None when it is over."""
        at_ns = window.window_start_ns + int(ABORT_FROM_S * NS)
        while at_ns < window.planned_end_ns:
            self._take(self.target.run(None, at_ns))
            self._refuse_dead(list(self._rows[window.index].values()))
            table = self.requests(window.index)
            dwell = count(table, window, self.plan.slo, self.plan.workload, at_ns)
            reason = should_abort(dwell, waiting(table, at_ns), self.plan.slo, at_ns)
            if reason:
                return reason
            at_ns += int(ABORT_EVERY_S * NS)
        return None

    def _refuse_dead(self, rows: list[dict[str, Any]], least: int = DEAD_LEAST) -> None:
        """Raise TargetLost when almost nothing is answered: that is no capacity, however low."""
        ended = [row for row in rows if row["status"] not in (records.PENDING, "missed")]
        failed = [row for row in ended if row["status"] in ("conn_error", "http_error")]
        if len(failed) >= max(least, DEAD_SHARE * len(ended)):
            kind, error = failed[-1]["error_kind"], failed[-1].get("error") or ""
            raise TargetLost(f"{len(failed)} of {len(ended)} requests failed: {kind} {error}".strip())

    def _drain(self) -> None:
        """Let what is in flight end, so that every window is judged on whole answers."""
        if self.outcomes:
            self._settle(self.outcomes[-1].segment.index, self.plan.search.settle_s, until_done=True)
            self._recount(self.target.now_ns())

    def _settle(self, index: int, limit_s: float, until_done: bool = False) -> None:
        """Offer nothing until no request of the last two segments waits for its first token, or its end."""
        self.target.retract()
        now_ns = self.target.now_ns()
        deadline_ns = now_ns + int(limit_s * NS)
        while now_ns < deadline_ns and self._waits(index, until_done):
            now_ns += NS // 2
            self._take(self.target.run(None, now_ns))
        self._free_ns = max(self._free_ns, self.target.now_ns())

    def _waits(self, index: int, until_done: bool) -> bool:
        rows = [row for i in (index - 1, index) for row in self._rows[i].values()]
        pending = [row for row in rows if row["status"] == records.PENDING]
        return any(until_done or row.get("first_token_offset_ns") is None for row in pending)

    def _take(self, observation: Observation) -> None:
        for row in observation.rows:
            self._rows[row["dwell"]][row["seq"]] = row
            self._touched.add(row["dwell"])
        self._health.append(observation.health)
        self._lost_actors = observation.lost_actors

    def _close(self, segment: Segment, window: Window, now_ns: int) -> None:
        """Add this window's outcome, recount the dwells that changed, and tell."""
        self._watched[window.index] = watched(self._health, self._lost_actors)
        fault = self.fault()
        if fault:
            raise TargetLost(fault)
        self._refuse_dead(list(self._rows[window.index].values()))
        outcome = self._outcome(segment, window, now_ns)
        bad = segment.kind == "ramp" and bad_step(outcome.dwell)
        self._recount(now_ns)
        self.outcomes.append(dataclasses.replace(outcome, bad=bad))
        self._tell(self.outcomes[-1], now_ns)

    def _outcome(self, segment: Segment, window: Window, now_ns: int) -> Outcome:
        """Counts and verdict of a window as known now; a void one weighs nothing."""
        table, seen = self.requests(window.index), self._watched[window.index]
        due = self._due_ns[window.index]
        planned = int(((due >= window.window_start_ns) & (due < window.window_end_ns)).sum())
        dwell = count(table, window, self.plan.slo, self.plan.workload, now_ns)
        verdict = judge_dwell(
            table,
            window,
            self.plan.slo,
            planned=planned,
            expected_replicas=self.plan.replicas,
            health=seen.health or None,
            lost_actors=seen.lost_actors,
            in_flight_mean=seen.in_flight,
        )
        self.verdicts[window.index] = verdict
        if not verdict.valid:
            dwell = dataclasses.replace(dwell, weight=0.0)
        return Outcome(segment, dwell, aborted=window.aborted, void=not verdict.valid)

    def _recount(self, now_ns: int) -> None:
        """Late finishers change the window they were due in."""
        for i, old in enumerate(self.outcomes):
            if old.segment.index in self._touched:
                new = self._outcome(old.segment, old.dwell, now_ns)
                self.outcomes[i] = dataclasses.replace(new, bad=old.bad)
                if new.void != old.void:
                    state = word(new, self.verdicts[new.dwell.index])
                    self.emit("rejudged", text=f"{new.dwell.kind} {new.dwell.index}, recounted: {state}")
        self._touched = set()

    def _capacity(self) -> Capacity | None:
        belief = prior(self.plan.search, self.plan.start, self.outcomes)
        if belief is None:
            return None
        return posterior([outcome.dwell for outcome in self.outcomes if not outcome.void], belief)

    def _tell(self, outcome: Outcome, now_ns: int) -> None:
        dwell, capacity = outcome.dwell, self._capacity()
        rows = in_window(self.requests(dwell.index), dwell)
        self.emit(
            "segment_done",
            index=dwell.index,
            kind=dwell.kind,
            rate_qps_per_node=outcome.segment.rate_qps,
            requests=dwell.requests,
            failed=dwell.failed,
            pending=dwell.pending,
            ttft_p90_ms=quantile(ttft_so_far(rows, self.plan.slo.ttft_p90_ms, now_ns), 0.9),
            tpot_p90_ms=quantile(tpot_so_far(rows, now_ns), 0.9),
            over_ttft_pct=percent(dwell.ttft.share),
            over_tpot_pct=percent(dwell.tpot.share),
            lag_p99_ms=quantile(metrics.send_lag(rows), 0.99),
            work_qps_per_node=math.exp(dwell.log_work),
            verdict=word(outcome, self.verdicts[dwell.index]),
            capacity=dataclasses.asdict(capacity) if capacity else None,
        )


def watched(observed: list[dict[str, dict[str, float]]], lost_actors: list[str]) -> Watched:
    """The worst figures of each actor over a window, and the mean in flight over all, by time."""
    health: dict[str, dict[str, float]] = {}
    integral, span_s = 0.0, 0.0
    for reply in observed:
        for actor, figures in reply.items():
            worst = health.setdefault(actor, dict(figures))
            worst.update({name: max(worst[name], value) for name, value in figures.items()})
        integral += sum(figures["in_flight"] * figures["span_s"] for figures in reply.values())
        span_s += max((figures["span_s"] for figures in reply.values()), default=0.0)
    return Watched(health, integral / span_s if span_s else None, lost_actors)


def percent(share: float | None) -> float | None:
    """A share as percent; unknown stays unknown."""
    return None if share is None else 100 * share


def word(outcome: Outcome, verdict: Verdict) -> str:
    """One word on a window: void with its reason, aborted, or which limits were kept (share over <= 10 %)."""
    if outcome.void:
        return f"VOID {verdict.reason}"
    over = [name for name in ("ttft", "tpot") if (getattr(outcome.dwell, name).share or 0) > 0.1]
    state = f"over {' and '.join(over)}" if over else "within"
    return f"{state} (ended early)" if outcome.aborted else state
