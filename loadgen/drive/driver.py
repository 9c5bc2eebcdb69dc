"""Drives a target: offers segments, watches them, waits for their answers, and for a service that was lost.

Knows the seam `Target`; knows neither HTTP nor Ray nor engines, and no order of segments. What windows show
is counted and judged in `windows`.
All randomness comes from the schedule's seed, so the same rows give the same decisions again.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from analysis.capacity.window_counts import Window, WindowCounts, count, in_window, waiting
from analysis.rows import metrics, records
from loadgen.drive import cache_warmup, steady
from loadgen.drive.liveness import DEAD_LEAST, death, heard_ns, silent
from loadgen.drive.plan import Past, Plan
from loadgen.drive.service_loss import MOST_RECOVERIES, spoilt_before
from loadgen.drive.window_health import watched
from loadgen.drive.windows import Windows
from loadgen.fleet.target import LostActor, Observation, Target
from loadgen.search.policy import (
    ABORT_EVERY_S,
    ABORT_FROM_S,
    RAMP_LOOK_S,
    Segment,
    Stop,
    fitted,
    plainly_bad,
    should_abort,
)
from loadgen.traffic.processes import Profile
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic

BRIDGE_NS = 1 * NS
"""Arrivals at the old rate go on this long (real) after a window, so that deciding never leaves a gap."""
LEAD_NS = NS // 5
"""A schedule reaches the load actors at least this long (real) before its first send."""
WARMUP_QPS = 4.0
"""Highest rate of the warm-up; a service that is thought slower gets half of what is thought."""
WARMUP_LIMIT_S = 600.0
POLL_NS = NS // 2
RUN_OUT = 1.5
"""Median lives of an answer for which the load goes on after the last window (our choice)."""
RUN_OUT_PIECE = 1000
"""Which piece of the next segment that load is: far beyond those that fill caches."""


class TargetLost(RuntimeError):
    """The service behind the target is gone or is no longer the one that was deployed."""


@dataclass(slots=True)
class Driver:
    """One run over a target.

    `emit(kind, **facts)` is told every decision, `plan_saved` every schedule before its first send, `told`
    the rows of requests that ended; `fault` says why the deployment is no longer whole, or None while it is.
    `repair` waits until it is whole again and returns the replicas to expect from then on, or raises
    TargetLost; without it whatever is lost stays lost.
    """

    target: Target
    plan: Plan
    emit: Callable[..., None]
    plan_saved: Callable[[ArrivalSchedule], None] = lambda _: None
    fault: Callable[[], str | None] = lambda: None
    told: Callable[[pa.Table], None] = lambda _: None
    repair: Callable[[], frozenset[str] | None] | None = None
    windows: Windows = field(init=False)
    traffic: Traffic = field(init=False)
    next_seq: int = 0
    free_ns: int = 0
    counted_ns: int = 0
    filled_qps: float = 0.0
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    _elapsed_before_ns: int = 0
    _began_ns: int = 0
    _beats: list[dict[str, Any]] = field(default_factory=list)
    _lost: list[LostActor] = field(default_factory=list)
    _healed: int = 0
    _begun: int = 0
    _whole_ns: int = 0
    _open: tuple[Segment, Window] | None = None

    def __post_init__(self) -> None:
        self.windows = Windows(self.plan, self.emit)
        self.traffic = Traffic(self.plan.workload)

    def restore(self, past: Past) -> None:
        """Take up the search where an earlier session of this run left it."""
        self.next_seq, self.free_ns = past.next_seq, past.end_ns
        self._elapsed_before_ns = int(past.elapsed_s * NS)
        self.windows.restore(past)
        self._begun = len(self.windows.outcomes)

    def elapsed_s(self) -> float:
        """Seconds of load after the warm-up, those of earlier sessions included."""
        return (self.free_ns - self._began_ns + self._elapsed_before_ns) / NS

    def next_start_ns(self) -> int:
        """The earliest start of what is offered next."""
        return max(self.free_ns, self.target.now_ns() + int(LEAD_NS * self.plan.time_scale))

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
            streams=self.plan.streams,
        )
        self.offer(schedule, int(schedule.due_ns[-1]) + NS)
        self._settle(-1, WARMUP_LIMIT_S, until_done=True)
        rows = self.windows.ledger.rows(-1)  # those of an earlier session of the run among them
        rows = rows.filter(pa.array(metrics.numbers(rows, "seq") >= schedule.seq[0]))
        states = Counter(rows["status"].to_pylist())
        counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
        self.emit("warm", text=f"warm-up: {len(schedule)} requests, {counted}")
        if self.plan.workload.wants_hits and cache_warmup.is_untold(rows):
            self.emit("fill", text=cache_warmup.UNTOLD)
        if other := rows.filter(pa.array(metrics.word_in(rows, "error_kind", "time_scale"))).to_pylist():
            self._lose(other[0]["error"])
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
        if segment.settle_before and self.windows.outcomes:
            last = self.windows.outcomes[-1].segment
            self._settle(last.index, self._patience_s(), fits=self._sustained(segment))
        # Nothing was offered just before, however near its rate.
        if 0 < len(self.windows.outcomes) == self._begun:
            least_s = max(segment.transition_s, self.plan.search.transition_s)
            segment = dataclasses.replace(segment, transition_s=least_s)
        if segment.kind != "ramp" and self.plan.workload.wants_hits:
            cache_warmup.caches(self, segment)
        if segment.kind != "ramp" and self._begun == len(self.windows.outcomes):
            first_qps = profile.first_qps / self.plan.nodes if profile else segment.rate_qps
            since_ns = max(self._began_ns, self._whole_ns)
            steady.reach(self, segment.index, first_qps, segment.transition_s, since_ns)
        window = self._window(segment)
        self._open = segment, window
        self.announce(segment, window)
        self.offer(self._draw(segment, window, profile or window.rate_qps), window.window_start_ns)
        reason = self.watch(window, may_abort=may_abort)
        now_ns = self.target.now_ns() if reason else window.planned_end_ns
        if reason:
            self.target.retract()
            window = dataclasses.replace(window, window_end_ns=now_ns, aborted=True)
            self.emit(
                "abort", index=segment.index, text=f"{segment.kind} {segment.index} ended early: {reason}"
            )
        self.free_ns = now_ns if reason else window.planned_end_ns + self.bridge_ns
        self.close(segment, window, now_ns)

    def has_lost_actor(self) -> bool:
        """True if a load actor was lost and has not been replaced."""
        return len(self._lost) > self._healed

    def uncharge(self, since_ns: int) -> None:
        """Take the time from an instant to the next free one out of the budget."""
        self._elapsed_before_ns -= self.free_ns - since_ns

    def _window(self, segment: Segment) -> Window:
        start_ns = self.next_start_ns()
        begin_ns = start_ns + int(segment.transition_s * NS)
        end_ns = begin_ns + int(segment.window_s * NS)
        rate_qps = segment.rate_qps * self.plan.nodes
        return Window(
            segment.index, segment.kind, rate_qps, self.plan.nodes, start_ns, begin_ns, end_ns, end_ns
        )

    @property
    def bridge_ns(self) -> int:
        """Deciding takes real time."""
        return int(BRIDGE_NS * self.plan.time_scale)

    def _draw(self, segment: Segment, window: Window, rate_qps: float | Profile) -> ArrivalSchedule:
        """The requests of a window; those of a pair are drawn like the segment that it replays."""
        inner = "ramp" if window.kind == "ramp" else "window"
        begin_ns = window.start_ns + int(segment.lead_s * NS)
        bounds = {
            "transition": (begin_ns, window.window_start_ns),
            inner: (window.window_start_ns, window.planned_end_ns),
            "bridge": (window.planned_end_ns, window.planned_end_ns + self.bridge_ns),
        }
        draw = partial(self.traffic.draw, rate_qps, streams=self.plan.streams)
        seq, seed = self.next_seq, self.plan.seed
        if segment.pair is None:
            return draw(bounds, dwell=window.index, first_seq=seq, seed=seed)
        before = {"transition": (window.start_ns, begin_ns)}
        # Another seed: the numbers of this segment and of the pair may be the same.
        lead = draw(before, dwell=window.index, first_seq=seq, seed=seed + 1)
        replayed = draw(bounds, dwell=segment.pair, first_seq=seq + len(lead), seed=seed)
        return lead.followed_by(replayed)

    def offer(self, schedule: ArrivalSchedule, until_ns: int) -> None:
        """Save a schedule, hand it to the target, and let time pass until `until_ns`."""
        self.plan_saved(schedule)
        self.windows.ledger.plan(schedule)
        self.next_seq += len(schedule)
        self.take(self.target.run(schedule, until_ns))

    def offer_piece(
        self, index: int, piece: int, rate_qps: float, seconds: float, last: bool = False
    ) -> tuple[int, int]:
        """Offer a rate per node for so long ahead of a segment; returns from when to when.

        Unless it is the `last` load of all, arrivals go on for as long as deciding takes.
        """
        start_ns = self.next_start_ns()
        end_ns = start_ns + int(seconds * NS)
        self.free_ns = end_ns + (0 if last else self.bridge_ns)
        schedule = self.traffic.draw(
            rate_qps * self.plan.nodes,
            {"bridge" if last else "transition": (start_ns, self.free_ns)},
            dwell=index,
            first_seq=self.next_seq,
            seed=self.plan.seed,
            streams=self.plan.streams,
            piece=piece,
        )
        self.offer(schedule, end_ns)
        self.refuse_dead(index)
        return start_ns, end_ns

    def watch(self, window: Window, may_abort: bool) -> str | None:
        """Let the window pass in slices; returns why it should end early, or None when it is over.

        Whatever may not abort for its queue still ends when a load actor or the service is lost.
        """
        ramp = window.kind == "ramp"
        from_s, every_s = (RAMP_LOOK_S, RAMP_LOOK_S) if ramp else (ABORT_FROM_S, ABORT_EVERY_S)
        at_ns = window.window_start_ns + int(from_s * NS)
        while at_ns < window.planned_end_ns:
            self.take(self.target.run(None, at_ns))
            if self.has_lost_actor():
                return f"lost {', '.join(map(str, self._lost[self._healed :]))}"
            self.refuse_dead(window.index)
            if may_abort and (reason := self._overload(window, at_ns)):
                return reason
            at_ns += int(every_s * NS)
        self.take(self.target.run(None, window.planned_end_ns))
        return None

    def _overload(self, window: Window, at_ns: int) -> str | None:
        """Why a window is no use any longer, or None."""
        if window.kind != "ramp":
            return should_abort(window, waiting(self._answerable(window.index), at_ns), self.plan.slo)
        rows = in_window(self._answerable(window.index), window)
        so_far = count(rows, window, self.plan.slo, self.plan.workload, at_ns)
        seconds = (at_ns - window.window_start_ns) / NS
        return plainly_bad(so_far, waiting(rows, at_ns), seconds, self.plan.slo)

    def _sustained(self, segment: Segment) -> float:
        """Answers in flight when each takes as long as the bounds allow, at the rate of a segment."""
        tpot_s, workload = self.plan.slo.tpot_p90_ms / 1e3, self.plan.workload
        return segment.rate_qps * self.plan.nodes * workload.output_tokens.mean * tpot_s

    def refuse_dead(self, index: int, least: int = DEAD_LEAST) -> None:
        """Raise TargetLost when almost nothing of a segment is answered, and its loss is not known yet."""
        if index in self.windows.watched and self.windows.watched[index].loss:
            return
        if reason := death(self.windows.ledger.rows(index), self.target.now_ns(), least):
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """Raise TargetLost."""
        self._tell_lost(f"the service is lost: {reason}", self._spoilt(self.target.now_ns()))
        raise TargetLost(reason)

    def _tell_lost(self, text: str, too: list[int]) -> None:
        """Tell whoever resumes which window is the first to be measured again, unless the service comes back.

        This session's last finished window may have been the dead service's whatever it shows.
        """
        last = max(len(self.windows.outcomes) - 1, self._begun)
        self.emit("target_lost", text=text, last=min([last, *too]))

    def recover(self, lost: TargetLost) -> None:
        """Wait until the service is whole again; what its loss spoilt is void, and the wait costs no budget.

        Raises `lost` again where nothing can be waited for, and TargetLost when it was waited for in vain.
        """
        if self.repair is None:
            raise lost
        if len(self.recoveries) >= MOST_RECOVERIES:
            raise TargetLost(f"{lost}; it came back {MOST_RECOVERIES} times already: mend it first") from lost
        self.target.retract()
        self.free_ns = lost_ns = self.target.now_ns()
        try:
            replicas = self.repair()
        except TargetLost as still:
            self.take(self.target.run(None, self.target.now_ns()))
            too = self._spoilt(lost_ns)
            self._tell_lost(f"the service stays away: {still}", too)
            self._void(str(lost), lost_ns, too)
            raise TargetLost(f"{lost}; {still}") from still
        self._await_answers()
        too = self._spoilt(lost_ns)
        waited_s = (self.target.now_ns() - lost_ns) / NS / self.plan.time_scale
        facts = {"reason": str(lost), "windows": too, "waited_s": waited_s}
        self.recoveries.append(facts)
        self.emit("recovered", text=f"whole again after {waited_s:.0f} s: the search goes on", **facts)
        self._void(str(lost), lost_ns, too)
        self._elapsed_before_ns -= self.target.now_ns() - lost_ns
        self.free_ns = self._whole_ns = self.target.now_ns()
        self._begun = len(self.windows.outcomes)
        self.filled_qps = 0.0  # its caches are empty again
        self.plan = dataclasses.replace(self.plan, replicas=replicas)

    def _await_answers(self) -> None:
        """Let end what was in flight when the service was lost: it would count as the next window's queue."""
        now_ns, index = self.target.now_ns(), len(self.windows.outcomes)
        limit_ns = now_ns + int(self._patience_s() * NS)
        self.take(self.target.run(None, now_ns))
        while now_ns < limit_ns and self._left(index, until_done=True):
            now_ns += POLL_NS
            self.take(self.target.run(None, now_ns))

    def _spoilt(self, lost_ns: int) -> list[int]:
        """Finished windows that may have felt the loss too."""
        seen = self.windows.outcomes[self._begun :], self.windows.requests, self.plan.replicas, lost_ns
        return spoilt_before(*seen, self.plan.time_scale)

    def _void(self, reason: str, lost_ns: int, too: Iterable[int]) -> None:
        """Void finished windows that felt a loss, and add the one that was open then, if any."""
        self.windows.spoil(too, reason)
        if self._open is None:
            self.windows.recount(self.target.now_ns())
            return
        segment, window = self._open
        end_ns = min(window.planned_end_ns, max(lost_ns, window.window_start_ns + 1))
        window = dataclasses.replace(window, window_end_ns=end_ns, aborted=end_ns < window.planned_end_ns)
        self._see(window)
        self.windows.spoil([window.index], reason)
        self._add(segment, window, self.target.now_ns())

    def drain(self, run_out: bool = False) -> None:
        """Let what is in flight end, so that every window is judged on whole answers.

        With `run_out` the load goes on until most of them are: in an emptying service the last answers would
        be faster than at the rate that is judged. Raises TargetLost when the service was lost meanwhile, and
        took answers of a window with it.
        """
        if not self.windows.outcomes:
            return
        if run_out:
            self._run_out(self.windows.outcomes[-1].dwell)
        self._settle(self.windows.outcomes[-1].segment.index, self._patience_s(), until_done=True)
        if (fault := self.fault()) and self._spoilt(self.target.now_ns()):
            self._lose(fault)
        self.windows.recount(self.target.now_ns())

    def _run_out(self, last: WindowCounts) -> None:
        """Go on at the rate of the last window, in the next segment, for as long as its answers take."""
        if last.aborted or not last.weight or last.median_e2e_s is None:
            return
        seconds = min(RUN_OUT * last.median_e2e_s, self._patience_s())
        # A session that goes on draws the segment itself.
        self.offer_piece(last.index + 1, RUN_OUT_PIECE, last.rate_qps / self.plan.nodes, seconds, last=True)

    def recount_on(self, rows: pa.Table) -> None:
        """Count and judge every window again on the rows as they were saved, as whoever reads them would."""
        self.counted_ns = self.target.now_ns()
        self.windows.recount_on(rows, self.counted_ns)

    def _settle(
        self, index: int, limit_s: float, until_done: bool = False, fits: float | None = None
    ) -> None:
        """Offer nothing until no request of the last two segments waits for its first token, or its end.

        With `fits` also until no more than so many are in flight.
        Raises TargetLost when several waited in vain and nothing at all was heard of the service meanwhile.
        """
        self.target.retract()
        began_ns = now_ns = self.target.now_ns()
        self.take(self.target.run(None, now_ns))
        left = waited = self._left(index, until_done, fits)
        while now_ns < began_ns + int(limit_s * NS) and left:
            now_ns += POLL_NS
            self.take(self.target.run(None, now_ns))
            left = self._left(index, until_done, fits)
        self.free_ns = max(self.free_ns, self.target.now_ns())
        rows = self._answerable(index)
        left += int(silent(rows).sum())
        if min(waited, left) >= DEAD_LEAST and heard_ns(rows) < began_ns:
            waited_s = (now_ns - began_ns) / NS
            self._lose(f"{waited} requests waited {waited_s:g} s without a token: the service hangs")
        self.refuse_dead(index)

    def _left(self, index: int, until_done: bool, fits: float | None = None) -> int:
        """Requests of the last two segments that wait for their first token, or for their end."""
        rows = self._answerable(index)
        running = int(metrics.status_in(rows, records.PENDING).sum())
        if until_done or (fits is not None and running > fits):
            return running
        return waiting(rows, self.target.now_ns())

    def _patience_s(self) -> float:
        """The longest that a backlog has to be answered."""
        return fitted(self.plan.search, self.plan.begin, self.windows.outcomes).settle_s

    def _answerable(self, index: int) -> pa.Table:
        """As `requests`, without those that a loss of the service may have left hanging for good."""
        rows = self.windows.requests(index)
        return rows.filter(pa.array(metrics.numbers(rows, "due_ns") >= self._whole_ns))

    def take(self, observation: Observation) -> None:
        """Add what a target told to what is known, and keep it."""
        self.told(observation.ended)
        self.windows.ledger.take(observation)
        self._beats += observation.health
        self._lost = observation.lost_actors

    def close(self, segment: Segment, window: Window, now_ns: int) -> None:
        """Add this window's outcome, recount the dwells that changed, and tell."""
        self._see(window)
        if fault := self.fault():
            self._lose(fault)
        self.refuse_dead(window.index)
        self._add(segment, window, now_ns)

    def _see(self, window: Window) -> None:
        """Keep what was seen of the load actors in a window."""
        lost = [str(actor) for actor in self._lost[self._healed :]]
        self.windows.watched[window.index] = watched(self._beats, window, lost, self.plan.replicas)
        self._beats = [beat for beat in self._beats if beat["clock_ns"] > window.window_start_ns]

    def _add(self, segment: Segment, window: Window, now_ns: int) -> None:
        self._open = None
        self.windows.add(segment, window, now_ns, self.elapsed_s())
