"""Drives a target window by window: settles it, offers load, watches it, and waits for its answers."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from analysis.capacity.window_counts import Window, count, in_window, waiting
from analysis.live.state import WindowSoFar
from loadgen.drive.load_feed import POLL_NS, LoadFeed, LoadPlan, Past
from loadgen.drive.loss_recovery import LossRecovery, TargetLost
from loadgen.drive.service_loss import DEAD_LEAST, heard_ns, in_flight, silent
from loadgen.drive.windows import Windows
from loadgen.fleet.target import Target
from loadgen.search.window_plan import (
    ABORT_EVERY_S,
    ABORT_FROM_S,
    RAMP_LOOK_S,
    WindowPlan,
    plainly_bad,
    should_abort,
)
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Profile

WATCH_S = 2.0
"""Real seconds between two updates for a watcher (our choice)."""
RUN_OUT = 1.5
"""Median lives of an answer for which the load goes on after the last window (our choice)."""
RUN_OUT_PIECE = 1000
"""Piece number of that load in the next window, far beyond the pieces of a cache warm-up."""


class Driver:
    """One run over a target; `emit(kind, **facts)` gets every decision.

    `warmed_qps` is the highest rate per node whose users the caches of the service know. A `watcher` gets the
    running window every few seconds, and changes nothing. `is_search` once a search with a budget goes on.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        emit: Callable[..., None],
        plan_saved: Callable[[ArrivalSchedule], None] = lambda _: None,
        fault: Callable[[], str | None] = lambda: None,
        reported: Callable[[pa.Table], None] = lambda _: None,
        repair: Callable[[], frozenset[str] | None] | None = None,
    ) -> None:
        self.emit = emit
        self.windows = Windows(plan, emit)
        self.feed = LoadFeed(target, plan, self.windows.ledger, emit, plan_saved, reported)
        self.loss = LossRecovery(self.feed, self.windows, emit, fault, repair)
        self.warmed_qps = 0.0
        self.counted_ns = 0
        self.watcher: Callable[[WindowSoFar], None] | None = None
        self.is_search = False

    @property
    def plan(self) -> LoadPlan:
        """The plan as it stands now."""
        return self.feed.plan

    def replan(self, **changes: Any) -> None:
        """Change fields of the plan; windows that were measured stay as they are."""
        self.feed.plan = dataclasses.replace(self.feed.plan, **changes)

    def restore(self, past: Past) -> None:
        """Take up the search where an earlier session of this run left it."""
        self.feed.restore(past)
        self.windows.restore(past)
        self.loss.first_window = len(self.windows.outcomes)

    def elapsed_s(self) -> float:
        """Seconds of load after the warm-up, those of earlier sessions included."""
        return self.feed.elapsed_s()

    @property
    def budget_s(self) -> float | None:
        """Seconds of load that the search may spend; None without a search."""
        return self.windows.search.budget_s if self.is_search else None

    def announce(self, plan: WindowPlan, window: Window) -> None:
        """Report what is offered next, and the real seconds of load until the budget is spent."""
        budget_s = self.budget_s
        self.emit(
            "window",
            index=plan.index,
            kind=plan.kind,
            rate_qps_per_node=None if window.concurrency else plan.rate_qps,
            transition_s=plan.transition_s,
            window_s=None if window.concurrency else plan.window_s,
            reason=plan.reason,
            start_s=window.start_ns / NS,
            left_s=None if budget_s is None else max(0.0, budget_s - self.elapsed_s()) / self.plan.time_scale,
        )

    def settle(self, plan: WindowPlan) -> None:
        """Let the backlog of the last window be answered where the next one asks for that."""
        if plan.settle_before and self.windows.outcomes:
            last, workload = self.windows.outcomes[-1].plan, self.plan.workload
            longest_s = self.plan.slo.tokens_s(workload.output_tokens.mean)
            # That many answers are in flight when each takes as long as the bounds allow.
            fits = plan.rate_qps * self.plan.nodes * longest_s
            self.await_answers(last.index, self.windows.search.settle_s, fits=fits)

    def offer_piece(
        self, index: int, piece: int, rate_qps: float, seconds: float, last: bool = False
    ) -> tuple[int, int]:
        """Offer load ahead of a window (`LoadFeed.offer_piece`); raises TargetLost if nobody answers."""
        span = self.feed.offer_piece(index, piece, rate_qps, seconds, last)
        self.loss.refuse_dead(index)
        return span

    def load(self, plan: WindowPlan, may_abort: bool = True, profile: Profile | None = None) -> None:
        """Offer one window, watch it, and add its outcome."""
        window = self.feed.window(plan)
        self.windows.open = plan, window
        self.announce(plan, window)
        self.feed.offer(self.feed.draw(plan, window, profile or window.rate_qps), window.window_start_ns)
        reason = self.watch(window, may_abort=may_abort)
        if reason:
            now_ns = self.feed.free_ns = self.feed.target.now_ns()
            self.feed.target.retract()
            window = dataclasses.replace(window, window_end_ns=now_ns, aborted=True)
            self.emit("abort", index=plan.index, text=f"{plan.kind} {plan.index} ended early: {reason}")
        else:
            now_ns = window.planned_end_ns
            self.feed.free_ns = now_ns + self.feed.bridge_ns
        self.close(plan, window, now_ns)

    def watch(self, window: Window, may_abort: bool) -> str | None:
        """Let the window pass in slices; returns why it should end early, or None when it is over."""
        ramp = window.kind == "ramp"
        from_s, every_s = (RAMP_LOOK_S, RAMP_LOOK_S) if ramp else (ABORT_FROM_S, ABORT_EVERY_S)
        at_ns = window.window_start_ns + int(from_s * NS)
        while at_ns < window.planned_end_ns:
            self._wait(window, at_ns)
            if cut := self.loss.cut_load_hosts(window.start_ns):
                return cut
            if missing := self.feed.missing_actors():
                return f"lost {', '.join(missing)}"
            self.loss.refuse_unreachable(window.start_ns)
            self.loss.refuse_dead(window.index)
            if may_abort and (reason := self._overload(window, at_ns)):
                return reason
            at_ns += int(every_s * NS)
        self._wait(window, window.planned_end_ns)
        return None

    def _wait(self, window: Window, until_ns: int) -> None:
        """Let time pass; a watcher gets the window as it stands meanwhile."""
        step_ns = int(WATCH_S * NS * self.plan.time_scale)
        while self.watcher and self.feed.target.now_ns() + step_ns < until_ns:
            self.feed.wait_until(self.feed.target.now_ns() + step_ns)
            now_ns = self.feed.target.now_ns()
            spent_s = (now_ns - self.feed.free_ns) / NS + self.elapsed_s()
            self.watcher(self.windows.so_far(window, self.feed.samples, now_ns, spent_s, self.budget_s))
        self.feed.wait_until(until_ns)

    def _overload(self, window: Window, at_ns: int) -> str | None:
        slo, rows = self.plan.slo, self.loss.answerable(window.index)
        if window.kind != "ramp":
            return should_abort(window, waiting(rows, at_ns), slo)
        rows = in_window(rows, window)
        so_far = count(rows, window, slo, self.plan.workload, at_ns)
        seconds = (at_ns - window.window_start_ns) / NS
        return plainly_bad(so_far, waiting(rows, at_ns), seconds, slo)

    def close(self, plan: WindowPlan, window: Window, now_ns: int) -> None:
        """Add the outcome of a window that is over, and recount those that changed meanwhile."""
        self.feed.refresh()  # what was due since the last look was sent, too
        evidence = self.feed.evidence_in(window)
        self.loss.refuse_unreachable(window.start_ns)
        self.loss.refuse_fault()
        self.loss.refuse_dead(window.index)
        self.windows.add(plan, window, evidence, now_ns, self.elapsed_s())

    def recover(self, lost: TargetLost) -> None:
        """Wait until a lost service is back (`LossRecovery.recover`), its caches empty."""
        self.loss.recover(lost)
        self.warmed_qps = 0.0

    def drain(self, run_out: bool = False) -> None:
        """Let what is in flight end, so that every window is judged on whole answers. Raises TargetLost.

        With `run_out` the load goes on until most of them are: in an emptying service the last answers would
        be too fast.
        """
        if not self.windows.outcomes:
            return
        last, limit_s = self.windows.outcomes[-1].counts, self.windows.search.settle_s
        if run_out and not last.aborted and last.weight and last.median_e2e_s is not None:
            # A session that goes on draws the window of this number itself.
            ahead = last.index + 1, RUN_OUT_PIECE, last.rate_qps / self.plan.nodes
            self.offer_piece(*ahead, min(RUN_OUT * last.median_e2e_s, limit_s), last=True)
        self.await_answers(last.index, limit_s, until_done=True)
        self.loss.refuse_fault(only_if_felt=True)
        self.windows.recount(self.feed.target.now_ns())

    def recount_on(self, rows: pa.Table) -> None:
        """Count and judge every window again on the rows as they were saved, as whoever reads them would."""
        self.counted_ns = self.feed.target.now_ns()
        self.windows.recount_on(rows, self.counted_ns)

    def await_answers(
        self, index: int, limit_s: float, until_done: bool = False, fits: float | None = None
    ) -> None:
        """Offer nothing until no request of the last two windows waits for its first token, or its end.

        With `fits` also until no more than so many are in flight.
        Raises TargetLost when several waited in vain and nothing at all was heard of the service meanwhile,
        and when almost nothing of a window is answered; `warm_up` judges its own requests.
        """
        feed = self.feed
        feed.target.retract()
        began_ns = feed.target.now_ns()
        counts = feed.poll(lambda: self._left(index, until_done, fits), limit_s)
        feed.free_ns = max(feed.free_ns, feed.target.now_ns())
        rows = self.loss.answerable(index)
        left = counts[-1] + int(silent(rows).sum())
        if min(counts[0], left) >= DEAD_LEAST and heard_ns(rows) < began_ns:
            waited_s = (len(counts) - 1) * POLL_NS / NS
            self.loss.lose(f"{counts[0]} requests waited {waited_s:g} s without a token: the service hangs")
        if index >= 0:
            self.loss.refuse_dead(index)

    def _left(self, index: int, until_done: bool, fits: float | None) -> int:
        rows = self.loss.answerable(index)
        running = in_flight(rows)
        if until_done or (fits is not None and running > fits):
            return running
        return waiting(rows, self.feed.target.now_ns())
