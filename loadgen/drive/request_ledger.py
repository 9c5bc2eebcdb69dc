"""Every request of a run as known now: ended, in flight, or lost with its load actor."""

from collections import defaultdict

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from loadgen.fleet.rows import plan_table
from loadgen.fleet.target import LostActor, Observation
from loadgen.traffic.schedule import ArrivalSchedule

NONE = records.PROGRESS.empty_table()
MOST_PIECES = 8
"""Observations of a window that are kept apart; joining each at once would copy all, again and again."""


class Ledger:
    """Rows by window. `touched` are the windows whose rows changed since `settled` was called."""

    def __init__(self) -> None:
        self.touched: set[int] = set()
        self._ended: dict[int, list[pa.Table]] = defaultdict(list)
        self._pending: dict[int, pa.Table] = {}
        self._plans: dict[int, ArrivalSchedule] = {}
        self._lost = 0
        self._asked: dict[tuple[int, ...], pa.Table] = {}  # since `_keep`, by which every change goes

    def plan(self, schedule: ArrivalSchedule) -> None:
        """Remember what was planned for a window, also in several pieces."""
        before = self._plans.get(schedule.window_index)
        self._plans[schedule.window_index] = before.followed_by(schedule) if before else schedule

    def restore(self, rows: pa.Table) -> None:
        """Take the rows of an earlier session of this run, all of them ended."""
        self._keep(rows.select(records.PROGRESS.names).cast(records.PROGRESS))

    def replace(self, rows: pa.Table) -> None:
        """Forget all rows for those of the whole run, as they were saved in the end."""
        self._ended.clear()
        self._pending = {}
        self.restore(rows)

    def take(self, seen: Observation) -> None:
        """Add what ended, replace what is in flight, and give up what a lost actor owned."""
        new, self._lost = seen.lost_actors[self._lost :], len(seen.lost_actors)
        self._keep(self._unreported(seen.ended) if new else seen.ended)
        self.touched |= set(self._pending)
        self._pending = _by_window(seen.pending)
        self.touched |= set(self._pending)
        for actor in new:
            self._give_up(actor)

    def rows(self, *indices: int) -> pa.Table:
        """All rows of the windows, each request once."""
        if indices not in self._asked:
            tables = [table for i in indices for table in self._ended.get(i, [])]
            tables += [self._pending[i] for i in indices if i in self._pending]
            self._asked[indices] = pa.concat_tables([NONE, *tables]).combine_chunks()
        return self._asked[indices]

    def planned(self, index: int, start_ns: int, end_ns: int) -> int | None:
        """Requests of a window that were due in [start, end); None where the plan is not known."""
        plan = self._plans.get(index)
        if plan is None or plan.concurrency:
            return None
        return int(((plan.due_ns >= start_ns) & (plan.due_ns < end_ns)).sum())

    def settled(self) -> None:
        """All changes so far have been counted."""
        self.touched = set()

    def _keep(self, ended: pa.Table) -> None:
        self._asked = {}
        for index, rows in _by_window(ended).items():
            tables = self._ended[index]
            tables.append(rows)
            if len(tables) > MOST_PIECES:
                self._ended[index] = [pa.concat_tables(tables).combine_chunks()]
            self.touched.add(index)

    def _unreported(self, rows: pa.Table) -> pa.Table:
        """The rows that are not in the ledger yet, each once."""
        _, first = np.unique(rows["seq"].to_numpy(), return_index=True)
        rows = rows.take(pa.array(first))
        seqs = [table["seq"].to_numpy() for tables in self._ended.values() for table in tables]
        return rows.filter(pa.array(~np.isin(rows["seq"].to_numpy(), np.concatenate([[], *seqs]))))

    def _give_up(self, actor: LostActor) -> None:
        """Record requests of the actor without a row as lost."""
        for index, plan in self._plans.items():
            owned = plan.where(plan.owner(actor.of) == actor.index)
            seqs = self.rows(index)["seq"].to_numpy()
            unknown = owned.where(~np.isin(owned.seq, seqs))
            if len(unknown):
                self._keep(records.lost(plan_table(unknown)).select(records.PROGRESS.names))


def _by_window(rows: pa.Table) -> dict[int, pa.Table]:
    number = metrics.numbers(rows, "window_index")
    indices = np.unique(number)
    if len(indices) == 1:
        return {int(indices[0]): rows}
    return {int(i): rows.filter(pa.array(number == i)) for i in indices}
