"""Counts and judges the windows of a run, also the running one, and again when late answers change them."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import window_table
from analysis.capacity.checks import judge_window, lag_gate_ms
from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.rules import WindowEvidence
from analysis.capacity.service_change import Claim, claimed
from analysis.capacity.window_counts import (
    NS,
    LimitCount,
    Window,
    count,
    count_by_stream,
    in_window,
    latency_so_far,
    waiting,
    without_lag,
)
from analysis.live.state import LatencySoFar, WindowSoFar
from analysis.rows import failures, metrics
from analysis.stats.quantiles import quantile
from conf.host_outage import HostOutage
from conf.specs.bounds import PER_REQUEST, Bound, allowed_over, metric_of
from conf.specs.experiment import Search
from loadgen.drive import service_loss
from loadgen.drive.load_feed import Ledger, LoadPlan, Past
from loadgen.drive.service_loss import invalidated
from loadgen.search.pacing import fitted
from loadgen.search.policy import prior
from loadgen.search.window_plan import (
    MeasuredWindow,
    WindowPlan,
    bad_step,
    counted_windows,
    long_queue,
    plainly_bad,
)


@dataclass(slots=True)
class Windows:
    """The windows measured so far, by their number; `emit(kind, **facts)` gets each judgement.

    `reported` are the figures of a window when it was over, `open` is the window that is being loaded,
    `outages` are those of hosts so far, on the run's clock. Only what no run changes is read of `plan`: its
    search, bounds and workload.
    """

    plan: LoadPlan
    emit: Callable[..., None]
    ledger: Ledger = field(default_factory=Ledger)
    outcomes: list[MeasuredWindow] = field(default_factory=list)
    reported: dict[int, dict[str, Any]] = field(default_factory=dict)
    open: tuple[WindowPlan, Window] | None = None
    _claim: tuple[list[MeasuredWindow], Claim] | None = None
    outages: Callable[[], Sequence[HostOutage]] = lambda: ()

    def restore(self, past: Past) -> None:
        """Take up the windows of an earlier session of this run."""
        self.ledger.restore(past.rows)
        for window in past.windows:
            self.outcomes.append(self._recounted(window, past.end_ns))
        self.ledger.settled()

    def requests(self, index: int) -> pa.Table:
        """Rows of a window and of its neighbours, as known now; those in flight are `pending`."""
        return self.ledger.rows(index - 1, index, index + 1)

    @property
    def search(self) -> Search:
        """The search with times and budget for answers that last as long as those so far.

        Its `settle_s` is the longest that a backlog has to be answered.
        """
        return fitted(self.plan.search, self.plan.begin, self.outcomes)

    def invalidate(self, indices: Iterable[int], reason: str) -> None:
        """Mark windows that felt a loss of the service, so that they are void when they are judged next."""
        for index in indices:
            old = self.outcomes[index]
            evidence = dataclasses.replace(old.evidence, loss=reason)
            self.outcomes[index] = dataclasses.replace(old, evidence=evidence)
            self.ledger.touched.add(index)

    def add(
        self, plan: WindowPlan, window: Window, evidence: WindowEvidence, now_ns: int, elapsed_s: float
    ) -> None:
        """Add a window that is over, recount those that changed, and report it."""
        self.open = None
        measured = self._measured(plan, window, evidence, now_ns)
        if plan.kind == "ramp":
            measured = self._guiding(measured, now_ns)
        self.recount(now_ns)
        self.outcomes.append(measured)
        self._report(measured, now_ns, elapsed_s)

    def recount(self, now_ns: int) -> None:
        """Recount what changed: late answers change their window, and the next load a window's last
        blocks."""
        last = len(self.outcomes) - 1
        for i, old in enumerate(self.outcomes):
            is_cut = service_loss.added(old.evidence, self.outages(), old.rows, old.counts) != old.evidence
            if is_cut or old.index in self.ledger.touched or i == last:
                self.outcomes[i] = new = self._recounted(old, now_ns)
                if new.void != old.void or is_cut:
                    text = f"{new.plan.kind} {new.index}, recounted: {window_word(new)}"
                    hosts = {"nodes": new.evidence.lost_nodes, "load_hosts": new.evidence.lost_load_hosts}
                    self.emit("rejudged", text=text, index=new.index, void=new.void, lost=hosts)
        self.ledger.settled()

    def recount_on(self, rows: pa.Table, now_ns: int) -> None:
        """Count, judge and report every window on the rows as they were saved, as their readers would."""
        self.ledger.replace(rows)
        self.ledger.touched |= {window.index for window in self.outcomes}
        self.recount(now_ns)
        self._report_final(now_ns)

    @property
    def prior(self) -> Prior | None:
        """The prior of the capacity; None while the ramp is not over."""
        return prior(self.plan.search, self.plan.begin, self.outcomes)

    def claim(self) -> Claim | None:
        """What a verdict claims of the windows as last counted; None while the ramp is not over."""
        if (belief := self.prior) is None:
            return None
        # Events and the verdict claim the same: a window that was counted again is another object.
        before = self._claim[0] if self._claim else []
        if self._claim is None or list(map(id, before)) != list(map(id, self.outcomes)):
            counted = [outcome.counts for outcome in self.outcomes]
            claim = claimed(counted_windows(self.outcomes), belief, counted, self.requests)
            self._claim = list(self.outcomes), claim
        return self._claim[1]

    def so_far(
        self,
        window: Window,
        health: Sequence[dict[str, Any]],
        now_ns: int,
        elapsed_s: float,
        budget_s: float | None,
    ) -> WindowSoFar:
        """The running window at `now_ns`, in a run that has used `elapsed_s` of its budget."""
        slo, table = self.plan.slo, self.ledger.rows(window.index)
        counts, rows = count(table, window, slo, self.plan.workload, now_ns), in_window(table, window)
        rows = metrics.chosen(rows, metrics.numbers(rows, "due_ns") <= now_ns)
        seconds = max(0.0, (min(now_ns, window.window_end_ns) - window.window_start_ns) / NS)
        newest = {beat["client_id"]: beat.get("in_flight") for beat in health}
        in_flight = [number for number in newest.values() if number is not None]
        return WindowSoFar(
            index=window.index,
            kind=window.kind,
            rate_qps_per_node=None if window.concurrency else window.rate_qps / window.nodes,
            achieved_qps_per_node=counts.requests / seconds / window.nodes if seconds else None,
            now_s=now_ns / NS,
            window_start_s=window.window_start_ns / NS,
            window_end_s=window.planned_end_ns / NS,
            sent=counts.requests,
            answered=counts.completed,
            failed=counts.failed,
            pending=counts.pending,
            in_flight=round(sum(in_flight)) if in_flight else None,
            latencies={
                bound.column: _latency(rows, bound, counts.over(bound.limit), now_ns) for bound in slo.bounds
            },
            lag_p99_ms=quantile(metrics.send_lag(rows), 0.99),
            lag_gate_ms=lag_gate_ms(rows, slo),
            elapsed_s=elapsed_s,
            budget_s=budget_s,
            failures=failures.kinds(rows),
        )

    def _measured(
        self, plan: WindowPlan, window: Window, evidence: WindowEvidence, now_ns: int
    ) -> MeasuredWindow:
        """A window counted and judged as known now; a void one weighs nothing."""
        table, slo, workload = self.requests(window.index), self.plan.slo, self.plan.workload
        counts, rows = count(table, window, slo, workload, now_ns), in_window(table, window)
        streams = self.plan.streams
        evidence = dataclasses.replace(
            service_loss.added(evidence, self.outages(), rows, window),
            planned=self.ledger.planned(window.index, window.window_start_ns, window.window_end_ns),
            block_tokens=self.plan.block_tokens,
            unloaded=self._warmup_before(window),
        )
        verdict = judge_window(table, window, slo, evidence)
        verdict = invalidated(verdict) if evidence.loss else verdict
        return MeasuredWindow(
            plan,
            counts if verdict.valid else dataclasses.replace(counts, weight=0.0),
            void=not verdict.valid,
            parts=count_by_stream(table, window, streams, slo, workload, now_ns) if streams else (),
            rows=rows,
            verdict=verdict,
            evidence=evidence,
        )

    def _recounted(self, old: MeasuredWindow, now_ns: int) -> MeasuredWindow:
        """A window counted and judged as known now, but for what decided the ramp: bad and void."""
        new = self._measured(old.plan, old.counts, old.evidence, now_ns)
        return dataclasses.replace(new, bad=old.bad, void=old.void if old.plan.kind == "ramp" else new.void)

    def _warmup_before(self, window: Window) -> pa.Table:
        """Rows of the last warm-up before a window; a resumed run has several."""
        rows = self.ledger.rows(-1)
        due_ns = metrics.numbers(rows, "due_ns")
        last_ns = np.max(due_ns[due_ns < window.start_ns], initial=0.0)
        ends_ns = (outcome.counts.window_end_ns for outcome in self.outcomes)
        since_ns = max((end_ns for end_ns in ends_ns if end_ns <= last_ns), default=0)
        return metrics.chosen(rows, (due_ns >= since_ns) & (due_ns <= last_ns))

    def _guiding(self, step: MeasuredWindow, now_ns: int) -> MeasuredWindow:
        """A ramp step as the ramp uses it: bad or not, and void only where a late client decides that.

        Its lag only raises latencies: what is good with it is good, and what is bad without it is bad.
        """
        counts, slo = step.counts, self.plan.slo
        waits = waiting(step.rows, now_ns)
        bad = counts.aborted or bad_step(counts) or long_queue(counts, waits, slo)
        if [check.name for check in step.verdict.checks if check.voids] != ["send_lag_p99"]:
            return dataclasses.replace(step, bad=bad)
        in_time = without_lag(self.requests(counts.index))
        least = count(in_time, counts, slo, self.plan.workload, now_ns)
        waits = waiting(in_window(in_time, counts), now_ns)
        surely = bad_step(least) or long_queue(least, waits, slo)
        surely = surely or bool(plainly_bad(least, waits, counts.seconds, slo))
        return dataclasses.replace(step, bad=bad, void=bad and not surely)

    def _report(self, window: MeasuredWindow, now_ns: int, elapsed_s: float) -> None:
        belief = self.prior
        capacity = posterior(counted_windows(self.outcomes), belief) if belief else None
        self.reported[window.index] = figures = self._figures(window, now_ns)
        self.emit(
            "window_done",
            **figures,
            plan=dataclasses.asdict(window.plan),
            window={field.name: getattr(window.counts, field.name) for field in dataclasses.fields(Window)},
            lost_actors=window.evidence.lost_actors,
            loss=window.evidence.loss,
            lost={"nodes": window.evidence.lost_nodes, "load_hosts": window.evidence.lost_load_hosts},
            elapsed_s=elapsed_s,
            capacity=dataclasses.asdict(capacity) if capacity else None,
        )

    def _report_final(self, now_ns: int) -> None:
        """Emit the final figures of every window, and whether they changed since its first report."""
        claim = self.claim()
        # A growing queue leaves the lower end unknown.
        unknown = {"low": None, "certified": None} if claim and claim.capacity.queue_grew else {}
        capacity = dataclasses.asdict(claim.capacity) | unknown if claim else None
        for window in self.outcomes:
            figures, is_last = self._figures(window, now_ns), window is self.outcomes[-1]
            self.emit(
                "window_final",
                **figures,
                changed=figures != self.reported.get(window.index),
                capacity=capacity if is_last else None,
            )

    def _figures(self, window: MeasuredWindow, now_ns: int) -> dict[str, Any]:
        """Figures of a window and its judgement for events; `resume` needs `bad` and `void` again."""
        counts, rows, bounds = window.counts, window.rows, self.plan.slo.bounds
        return {
            "index": window.index,
            "kind": window.plan.kind,
            "rate_qps_per_node": window.plan.rate_qps,
            "requests": counts.requests,
            "failed": counts.failed,
            "pending": counts.pending,
            "failures": failures.kinds(rows),
            **{bound.column: window_table.limited(rows, bound, now_ns) for bound in bounds},
            **{f"over_{limit}_pct": _percent(counted.share) for limit, counted in counts.limits.items()},
            "lag_p99_ms": quantile(metrics.send_lag(rows), 0.99),
            "work_qps_per_node": math.exp(counts.log_work),
            "verdict": window_word(window),
            "bad": window.bad,
            "void": window.void,
        }


def window_word(window: MeasuredWindow) -> str:
    """A few words: void with its reason and unreachable hosts, ended by an overload, or missed limits."""
    if window.void:
        hosts = ", ".join((*window.evidence.lost_load_hosts, *window.evidence.lost_nodes))
        return f"VOID {window.verdict.reason}" + (f": {hosts}" if hosts else "")
    if not window.verdict.valid:
        return f"VOID {window.verdict.reason}, but {'bad' if window.bad else 'good'} all the same"
    if window.aborted:  # without a load actor, which makes it void, only an overload does that
        return "overloaded, ended early"
    counted = window.counts.limits
    over = [limit for limit, counts in counted.items() if (counts.share or 0) > allowed_over(limit)]
    return f"over {' and '.join(over)}" if over else "within"


def _latency(rows: pa.Table, bound: Bound, counted: LimitCount, now_ns: int) -> LatencySoFar:
    has_own = metric_of(bound.limit) in PER_REQUEST
    latency = latency_so_far(rows, bound, now_ns) if has_own else np.empty(0)
    return LatencySoFar(
        bound_ms=bound.ms,
        known=round(counted.determined),
        p50_ms=quantile(latency, 0.5),
        p90_ms=quantile(latency, 0.9),
        over_pct=_percent(counted.share),
    )


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
