"""Notices the loss of a service, waits until it is back, and invalidates the windows that felt the loss.

Which windows may have felt a loss is said in `service_loss`.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa

from analysis.rows import metrics
from conf.host_outage import HostOutage
from loadgen.drive import service_loss
from loadgen.drive.load_feed import LoadFeed
from loadgen.drive.service_loss import DEAD_LEAST, MOST_RECOVERIES, death, in_flight, outlived
from loadgen.drive.windows import Windows
from loadgen.search.window_plan import Stop
from loadgen.traffic.schedule import NS


class TargetLost(RuntimeError):
    """The service behind the target is gone or is no longer the one that was deployed."""


@dataclass(slots=True)
class LossRecovery:
    """The service as it stands now: whole since `whole_ns`, its first window is number `first_window`.

    `fault` says why the deployment is not whole, or None. `repair` waits until it is and returns the replicas
    to expect, or raises TargetLost; without it what is lost stays lost.
    """

    feed: LoadFeed
    windows: Windows
    emit: Callable[..., None]
    fault: Callable[[], str | None]
    repair: Callable[[], frozenset[str] | None] | None
    recoveries: list[dict[str, Any]] = field(default_factory=list)
    whole_ns: int = 0
    first_window: int = 0

    def answerable(self, index: int) -> pa.Table:
        """Rows of a window and its neighbours that speak for or against the service.

        Not those that an earlier loss may have left hanging, nor those whose own host had no network.
        """
        rows = self._with_network(self.windows.requests(index))
        return metrics.chosen(rows, metrics.numbers(rows, "due_ns") >= self.whole_ns)

    def _with_network(self, rows: pa.Table) -> pa.Table:
        outages = [outage for outage in self.windows.outages() if outage.clients]
        return metrics.chosen(rows, ~service_loss.own_fault(outages, rows)) if outages else rows

    def _outages(self, since_ns: float) -> Sequence[HostOutage]:
        """Outages since an instant, none of an earlier loss among them."""
        since_ns, now_ns = max(since_ns, self.whole_ns), self.feed.target.now_ns()
        return [outage for outage in self.windows.outages() if outage.lasted_at(since_ns, now_ns)]

    def cut_load_hosts(self, since_ns: float) -> str | None:
        """The load hosts that could not be reached since then, and why; or None."""
        outages = [outage for outage in self._outages(since_ns) if outage.loads]
        return f"load host {service_loss.described(outages)}" if outages else None

    def refuse_unreachable(self, since_ns: float) -> None:
        """Raise TargetLost if a host of the service could not be reached since then."""
        outages = [outage for outage in self._outages(since_ns) if outage.serves and not outage.loads]
        if outages:
            self.lose(f"node {service_loss.described(outages)}")

    def refuse_dead(self, index: int, least: int = DEAD_LEAST) -> None:
        """Raise TargetLost when almost nothing of a window is answered, and its loss is not known yet."""
        if 0 <= index < len(self.windows.outcomes) and self.windows.outcomes[index].evidence.loss:
            return
        rows = self._with_network(self.windows.ledger.rows(index))
        if reason := death(rows, self.feed.target.now_ns(), least):
            self.lose(reason)

    def refuse_fault(self, *, only_if_felt: bool = False) -> None:
        """Raise TargetLost if the deployment is not whole; `only_if_felt`: and a finished window felt it."""
        fault = self.fault()
        if fault and (not only_if_felt or self._affected(self.feed.target.now_ns())):
            self.lose(fault)

    def lose(self, reason: str) -> NoReturn:
        """Report that the service is lost, and raise TargetLost."""
        self._emit_lost(f"the service is lost: {reason}", self._affected(self.feed.target.now_ns()))
        raise TargetLost(reason)

    def recover(self, lost: TargetLost) -> None:
        """Wait until the service is whole again; what felt its loss is void, and the wait costs no budget.

        Raises `lost` again where nothing can be waited for, and TargetLost when it was waited for in vain.
        """
        if self.repair is None:
            raise lost
        if len(self.recoveries) >= MOST_RECOVERIES:
            raise TargetLost(f"{lost}; it came back {MOST_RECOVERIES} times already: mend it first") from lost
        feed, target = self.feed, self.feed.target
        target.retract()
        feed.free_ns = lost_ns = target.now_ns()
        try:
            replicas = self.repair()
        except TargetLost as still:
            feed.refresh()
            affected = self._affected(lost_ns)
            self._emit_lost(f"the service stays away: {still}", affected)
            self._invalidate(str(lost), lost_ns, affected)
            raise TargetLost(f"{lost}; {still}") from still
        # What was in flight when the service was lost would count as the next window's queue.
        index = len(self.windows.outcomes)
        feed.poll(lambda: in_flight(self.answerable(index)), self.windows.search.settle_s)
        affected = self._affected(lost_ns)
        waited_s = (target.now_ns() - lost_ns) / NS / feed.plan.time_scale
        facts = {"reason": str(lost), "windows": affected, "waited_s": waited_s}
        self.recoveries.append(facts)
        self.emit("recovered", text=f"whole again after {waited_s:.0f} s: the search goes on", **facts)
        self._invalidate(str(lost), lost_ns, affected)
        self._go_on(lost_ns)
        feed.plan = dataclasses.replace(feed.plan, replicas=replicas)

    def await_load_hosts(self) -> Stop | None:
        """Wait for load hosts without network and replace lost load actors, at no cost of the budget.

        Returns why nothing more can be measured if that fails.
        """
        feed, since_ns = self.feed, self.feed.free_ns
        feed.refresh()
        lasting = self.cut_load_hosts(self.feed.target.now_ns())
        if not lasting and not feed.missing_actors():
            return None
        self.windows.recount(feed.target.now_ns())
        if stop := feed.replace_actors(lasting):
            return stop
        self.windows.recount(feed.target.now_ns())
        self._go_on(since_ns)
        return None

    def _go_on(self, since_ns: int) -> None:
        """The service is whole now: the wait since an instant costs no budget, a first window follows."""
        self.feed.free_ns = self.whole_ns = self.feed.target.now_ns()
        self.feed.uncharge(since_ns)
        self.first_window = len(self.windows.outcomes)

    def _emit_lost(self, text: str, affected: Iterable[int]) -> None:
        """Name the first window to be measured again by whoever resumes: the last one is never believed."""
        last = max(len(self.windows.outcomes) - 1, self.first_window)
        self.emit("target_lost", text=text, last=min([last, *affected]))

    def _affected(self, lost_ns: int) -> list[int]:
        """The last windows that may have felt a loss; no ramp step, which is judged at its end."""
        windows, plan, indices = self.windows, self.feed.plan, list[int]()
        for outcome in reversed(windows.outcomes[self.first_window :]):
            rows = windows.requests(outcome.index)
            if outcome.plan.kind == "ramp" or outlived(
                rows, outcome.counts, plan.replicas, lost_ns, plan.time_scale
            ):
                break
            indices.append(outcome.index)
        return indices

    def _invalidate(self, reason: str, lost_ns: int, affected: Iterable[int]) -> None:
        """Void finished windows that felt a loss, and add the one that was open then, if any."""
        windows, now_ns = self.windows, self.feed.target.now_ns()
        windows.invalidate(affected, reason)
        if windows.open is None:
            windows.recount(now_ns)
            return
        plan, window = windows.open
        end_ns = min(window.planned_end_ns, max(lost_ns, window.window_start_ns + 1))
        window = dataclasses.replace(window, window_end_ns=end_ns, aborted=end_ns < window.planned_end_ns)
        evidence = dataclasses.replace(self.feed.evidence_in(window), loss=reason)
        windows.add(plan, window, evidence, now_ns, self.feed.elapsed_s())
