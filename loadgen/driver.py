"""Drives a target: offers segments, keeps every row, recounts dwells, judges windows.

Knows the seam `Target` and the analysis; knows neither HTTP nor Ray nor engines, and no order of segments.
All randomness comes from the schedule's seed, so the same rows give the same decisions again.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from analysis import metrics, records
from analysis.capacity import Capacity, posterior
from analysis.dwell import Window, count, in_window, tpot_so_far, ttft_so_far, waiting
from analysis.quantiles import quantile
from analysis.validity import Verdict, judge_closed, judge_dwell
from conf.schema import Search, Slo, Workload
from loadgen.arrivals import NS, ArrivalSchedule, Profile, Traffic
from loadgen.ledger import Ledger
from loadgen.liveness import DEAD_LEAST, death, heard_ns, silent
from loadgen.search import (
    ABORT_EVERY_S,
    ABORT_FROM_S,
    Outcome,
    Segment,
    Start,
    Stop,
    bad_step,
    prior,
    should_abort,
)
from loadgen.target import LostActor, Observation, Target
from loadgen.watch import Watched, watched

BRIDGE_NS = 1 * NS
"""Arrivals at the old rate go on this long after a window, so that deciding never leaves a gap."""
LEAD_NS = NS // 5
"""A schedule reaches the load actors at least this long before its first send."""
WARMUP_QPS = 4.0
"""Highest rate of the warm-up; a service that is thought slower gets half of what is thought."""
WARMUP_LIMIT_S = 600.0
POLL_NS = NS // 2


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
class Past:
    """What earlier sessions of a run left: finished segments with what was seen of the load actors.

    `rows` are those of the finished segments; `next_seq`, `end_ns` and `next_client` are beyond all that was
    used. `elapsed_s` of the budget was spent until the last segment's end.
    """

    segments: list[tuple[Segment, Window, bool, Watched]]
    rows: pa.Table
    next_seq: int
    end_ns: int
    elapsed_s: float
    next_client: int


class TargetLost(RuntimeError):
    """The service behind the target is gone or is no longer the one that was deployed."""


@dataclass(slots=True)
class Driver:
    """One run over a target.

    `emit(kind, **facts)` is told every decision, `plan_saved` every schedule before its first send, `told`
    the rows of requests that ended; `fault` says why the deployment is no longer whole, or None while it is.
    """

    target: Target
    plan: Plan
    emit: Callable[..., None]
    plan_saved: Callable[[ArrivalSchedule], None] = lambda _: None
    fault: Callable[[], str | None] = lambda: None
    told: Callable[[pa.Table], None] = lambda _: None
    outcomes: list[Outcome] = field(default_factory=list)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    traffic: Traffic = field(init=False)
    next_seq: int = 0
    free_ns: int = 0
    _elapsed_before_ns: int = 0
    _began_ns: int = 0
    _beats: list[dict[str, Any]] = field(default_factory=list)
    _lost: list[LostActor] = field(default_factory=list)
    _healed: int = 0
    _restored: int = 0
    _watched: dict[int, Watched] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.plan.workload)

    def restore(self, past: Past) -> None:
        """Take up the search where an earlier session of this run left it."""
        self.ledger.restore(past.rows)
        self.next_seq, self.free_ns = past.next_seq, past.end_ns
        self._elapsed_before_ns = int(past.elapsed_s * NS)
        for segment, window, bad, seen in past.segments:
            self._watched[window.index] = seen
            outcome = self._outcome(segment, window, past.end_ns)
            self.outcomes.append(dataclasses.replace(outcome, bad=bad))
        self._restored = len(self.outcomes)
        self.ledger.settled()

    def requests(self, index: int) -> pa.Table:
        """Rows of a segment and of the one before, as known now; those in flight are `pending`."""
        return self.ledger.rows(index - 1, index)

    def lost_in(self, index: int) -> tuple[str, ...]:
        """The load actors that were lost in a window, each with the reason."""
        return self._watched[index].lost_actors

    def elapsed_s(self) -> float:
        """Seconds of load after the warm-up, those of earlier sessions included."""
        return (self.free_ns - self._began_ns + self._elapsed_before_ns) / NS

    def next_start_ns(self) -> int:
        """The earliest start of what is offered next."""
        return max(self.free_ns, self.target.now_ns() + LEAD_NS)

    def heal(self) -> Stop | None:
        """Replace load actors that were lost; returns why nothing more can be measured if that fails."""
        self.take(self.target.run(None, self.target.now_ns()))
        if len(self._lost) <= self._healed:
            return None
        lost = ", ".join(map(str, self._lost[self._healed :]))
        if not self.target.heal():
            return Stop("actor_lost", f"lost {lost}: nothing more can be measured")
        self._healed = len(self._lost)
        self.emit("healed", text=f"replaced {lost}; what it owned is lost and its windows are void")
        return None

    def warm_up(self) -> None:
        """Untimed requests of the real shape, until all are answered; then the budget begins."""
        self.free_ns = self._began_ns = self.next_start_ns()
        if not self.plan.warmup_requests:
            return
        guess = self.plan.start.prediction_qps or self.plan.start.roofline_qps or WARMUP_QPS
        gap_ns = int(NS / min(WARMUP_QPS, guess * self.plan.nodes / 2))
        schedule = self.traffic.evenly(
            self.plan.warmup_requests,
            self.free_ns,
            gap_ns,
            first_seq=self.next_seq,
            seed=self.plan.seed,
        )
        self.offer(schedule, int(schedule.due_ns[-1]) + NS)
        self._settle(-1, WARMUP_LIMIT_S, until_done=True)
        states = Counter(self.ledger.rows(-1)["status"].to_pylist())
        counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        self.emit("warm", text=f"warm-up: {len(schedule)} requests, {counted}")
        self.refuse_dead(-1, least=1)
        self._began_ns = self.free_ns

    def announce(self, segment: Segment, window: Window) -> None:
        """Tell what is offered next."""
        self.emit(
            "segment",
            index=segment.index,
            kind=segment.kind,
            rate_qps_per_node=None if window.concurrency else segment.rate_qps,
            transition_s=segment.transition_s,
            window_s=None if window.concurrency else segment.window_s,
            reason=segment.reason,
            start_s=window.start_ns / NS,
        )

    def load(self, segment: Segment, may_abort: bool = True, profile: Profile | None = None) -> None:
        """Offer one segment, watch it, and add its outcome."""
        if segment.settle_before and self.outcomes:
            self._settle(self.outcomes[-1].segment.index, self.plan.search.settle_s)
        window = self._window(segment)
        self.announce(segment, window)
        self.offer(self._draw(window, profile or window.rate_qps), window.window_start_ns)
        reason = self.watch(window, may_abort=may_abort and segment.kind == "dwell")
        now_ns = self.target.now_ns() if reason else window.planned_end_ns
        if reason:
            self.target.retract()
            window = dataclasses.replace(window, window_end_ns=now_ns, aborted=True)
            self.emit("abort", index=segment.index, text=f"dwell {segment.index} ended early: {reason}")
        self.free_ns = now_ns if reason else window.planned_end_ns + BRIDGE_NS
        self.close(segment, window, now_ns)

    def _window(self, segment: Segment) -> Window:
        start_ns = self.next_start_ns()
        begin_ns = start_ns + int(segment.transition_s * NS)
        end_ns = begin_ns + int(segment.window_s * NS)
        rate_qps = segment.rate_qps * self.plan.nodes
        return Window(
            segment.index, segment.kind, rate_qps, self.plan.nodes, start_ns, begin_ns, end_ns, end_ns
        )

    def _draw(self, window: Window, rate_qps: float | Profile) -> ArrivalSchedule:
        inner = "ramp" if window.kind == "ramp" else "window"
        bounds = {
            "transition": (window.start_ns, window.window_start_ns),
            inner: (window.window_start_ns, window.planned_end_ns),
            "bridge": (window.planned_end_ns, window.planned_end_ns + BRIDGE_NS),
        }
        return self.traffic.draw(
            rate_qps, bounds, dwell=window.index, first_seq=self.next_seq, seed=self.plan.seed
        )

    def offer(self, schedule: ArrivalSchedule, until_ns: int) -> None:
        """Save a schedule, hand it to the target, and let time pass until `until_ns`."""
        self.plan_saved(schedule)
        self.ledger.plan(schedule)
        self.next_seq += len(schedule)
        self.take(self.target.run(schedule, until_ns))

    def watch(self, window: Window, may_abort: bool) -> str | None:
        """Let the window pass in slices; returns why it should end early, or None when it is over.

        Whatever may not abort for its latency still ends when a load actor or the service is lost.
        """
        at_ns = window.window_start_ns + int(ABORT_FROM_S * NS)
        while at_ns < window.planned_end_ns:
            self.take(self.target.run(None, at_ns))
            if len(self._lost) > self._healed:
                return f"lost {', '.join(map(str, self._lost[self._healed :]))}"
            self.refuse_dead(window.index)
            if may_abort and (reason := self._hopeless(window, at_ns)):
                return reason
            at_ns += int(ABORT_EVERY_S * NS)
        self.take(self.target.run(None, window.planned_end_ns))
        return None

    def _hopeless(self, window: Window, now_ns: int) -> str | None:
        """Why a window need not go on: what was seen of it is too far over the bounds."""
        table = self.requests(window.index)
        dwell = count(table, window, self.plan.slo, self.plan.workload, now_ns)
        return should_abort(dwell, waiting(table, now_ns), self.plan.slo, now_ns)

    def refuse_dead(self, index: int, least: int = DEAD_LEAST) -> None:
        """Raise TargetLost when almost nothing of a segment is answered."""
        if reason := death(self.ledger.rows(index), self.target.now_ns(), least):
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Raise TargetLost; this session's last finished window may have been the dead service's."""
        last = max(len(self.outcomes) - 1, self._restored)
        self.emit("target_lost", text=f"the service is lost: {reason}", last=last)
        raise TargetLost(reason)

    def drain(self) -> None:
        """Let what is in flight end, so that every window is judged on whole answers."""
        if self.outcomes:
            self._settle(self.outcomes[-1].segment.index, self.plan.search.settle_s, until_done=True)
            self._recount(self.target.now_ns())

    def _settle(self, index: int, limit_s: float, until_done: bool = False) -> None:
        """Offer nothing until no request of the last two segments waits for its first token, or its end.

        Raises TargetLost when several waited in vain and nothing at all was heard of the service meanwhile.
        """
        self.target.retract()
        began_ns = now_ns = self.target.now_ns()
        self.take(self.target.run(None, now_ns))
        left = waited = self._left(index, until_done)
        while now_ns < began_ns + int(limit_s * NS) and left:
            now_ns += POLL_NS
            self.take(self.target.run(None, now_ns))
            left = self._left(index, until_done)
        self.free_ns = max(self.free_ns, self.target.now_ns())
        rows = self.requests(index)
        left += int(silent(rows).sum())
        if min(waited, left) >= DEAD_LEAST and heard_ns(rows) < began_ns:
            waited_s = (now_ns - began_ns) / NS
            self._lose(f"{waited} requests waited {waited_s:g} s without a token: the service hangs")
        self.refuse_dead(index)

    def _left(self, index: int, until_done: bool) -> int:
        """Requests of the last two segments that wait for their first token, or for their end."""
        rows = self.requests(index)
        if until_done:
            return int(metrics.status_in(rows, records.PENDING).sum())
        return waiting(rows, self.target.now_ns())

    def take(self, observation: Observation) -> None:
        """Add what a target told to what is known, and keep it."""
        self.told(observation.ended)
        self.ledger.take(observation)
        self._beats += observation.health
        self._lost = observation.lost_actors

    def close(self, segment: Segment, window: Window, now_ns: int) -> None:
        """Add this window's outcome, recount the dwells that changed, and tell."""
        lost = [str(actor) for actor in self._lost[self._healed :]]
        self._watched[window.index] = watched(self._beats, window, lost, self.plan.replicas)
        self._beats = [beat for beat in self._beats if beat["clock_ns"] > window.window_start_ns]
        fault = self.fault()
        if fault:
            self._lose(fault)
        self.refuse_dead(window.index)
        outcome = self._outcome(segment, window, now_ns)
        bad = segment.kind == "ramp" and bad_step(outcome.dwell)
        self._recount(now_ns)
        self.outcomes.append(dataclasses.replace(outcome, bad=bad))
        self._tell(self.outcomes[-1], now_ns)

    def _outcome(self, segment: Segment, window: Window, now_ns: int) -> Outcome:
        """Counts and verdict of a window as known now; a void one weighs nothing."""
        table, seen = self.requests(window.index), self._watched[window.index]
        dwell = count(table, window, self.plan.slo, self.plan.workload, now_ns)
        judge = judge_closed if window.concurrency else judge_dwell
        verdict = judge(
            table,
            window,
            self.plan.slo,
            planned=self.ledger.planned(window.index, window.window_start_ns, window.window_end_ns),
            expected_replicas=seen.replicas,
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
            if old.segment.index in self.ledger.touched:
                new = self._outcome(old.segment, old.dwell, now_ns)
                self.outcomes[i] = dataclasses.replace(new, bad=old.bad)
                if new.void != old.void:
                    state = word(new, self.verdicts[new.dwell.index])
                    self.emit("rejudged", text=f"{new.dwell.kind} {new.dwell.index}, recounted: {state}")
        self.ledger.settled()

    def capacity(self) -> Capacity | None:
        belief = prior(self.plan.search, self.plan.start, self.outcomes)
        if belief is None:
            return None
        return posterior([outcome.dwell for outcome in self.outcomes if not outcome.void], belief)

    def _tell(self, outcome: Outcome, now_ns: int) -> None:
        dwell, capacity = outcome.dwell, self.capacity()
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
            bad=outcome.bad,
            void=outcome.void,
            lost_actors=self._watched[dwell.index].lost_actors,
            segment=dataclasses.asdict(outcome.segment),
            window={f.name: getattr(dwell, f.name) for f in dataclasses.fields(Window)},
            elapsed_s=self.elapsed_s(),
            capacity=dataclasses.asdict(capacity) if capacity else None,
        )


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
