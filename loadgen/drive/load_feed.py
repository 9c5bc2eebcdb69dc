"""The plan of a run's load, and the feed: load to a target, reports back, one clock and numbering.

All randomness comes from the schedule's seed, so the same rows give the same decisions again.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity.rules import BLOCK_TOKENS, WindowEvidence
from analysis.capacity.window_counts import Window
from analysis.rows import metrics, records
from conf import Experiment
from conf.specs.experiment import Search, Slo, Workload
from loadgen.fleet.rows import plan_table
from loadgen.fleet.target import LostActor, Observation, Target
from loadgen.search.window_plan import MeasuredWindow, Start, Stop, WindowPlan
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Profile, Traffic


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of a run. `replicas` are the ids expected in answers, None if unknown.

    `streams` are the independent streams of arrivals, one for each node; 0 where all nodes share one.
    All times are on a clock that runs `time_scale` times as fast as the real one. A prefix cache serves
    whole blocks of `block_tokens`.
    """

    search: Search
    slo: Slo
    workload: Workload
    nodes: int
    seed: int
    start: Start
    warmup_requests: int = 0
    replicas: frozenset[str] | None = None
    streams: int = 0
    time_scale: float = 1.0
    block_tokens: int = BLOCK_TOKENS

    @classmethod
    def from_experiment(
        cls, experiment: Experiment, replicas: frozenset[str] | None, start: Start
    ) -> "LoadPlan":
        """The plan of an experiment's load on a service with these replicas."""
        return cls(
            search=experiment.search,
            slo=experiment.slo,
            workload=experiment.workload,
            nodes=experiment.cluster.nodes,
            seed=experiment.seed,
            start=start,
            warmup_requests=experiment.fleet.warmup_requests,
            replicas=replicas,
            streams=experiment.streams,
            time_scale=experiment.time_scale,
            block_tokens=experiment.block_tokens,
        )

    @property
    def begin(self) -> Start:
        """The search's start, with the times that follow from the bounds."""
        lasts_s = self.slo.answer_s(self.workload.output_tokens.mean)
        return replace(self.start, ttft_s=self.slo.first_token_ms / 1e3, answer_s=lasts_s)


@dataclass(frozen=True, slots=True)
class Past:
    """Finished `windows` of earlier sessions of a run, with their judgements but not yet counted again.

    `rows` are theirs; `next_seq`, `end_ns` and `next_client` are beyond all that was used; `elapsed_s` is the
    budget spent.
    """

    windows: list[MeasuredWindow]
    rows: pa.Table
    next_seq: int
    end_ns: int
    elapsed_s: float
    next_client: int


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
        self._joined: dict[tuple[int, ...], pa.Table] = {}  # since `_keep`, by which every change goes

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

    def take(self, observation: Observation) -> None:
        """Add what ended, replace what is in flight, and give up what a lost actor owned."""
        new, self._lost = observation.lost_actors[self._lost :], len(observation.lost_actors)
        self._keep(self._unreported(observation.ended) if new else observation.ended)
        self.touched |= set(self._pending)
        self._pending = _by_window(observation.pending)
        self.touched |= set(self._pending)
        for actor in new:
            self._give_up(actor)

    def rows(self, *indices: int) -> pa.Table:
        """All rows of the windows, each request once."""
        if indices not in self._joined:
            tables = [table for i in indices for table in self._ended.get(i, [])]
            tables += [self._pending[i] for i in indices if i in self._pending]
            self._joined[indices] = pa.concat_tables([NONE, *tables]).combine_chunks()
        return self._joined[indices]

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
        self._joined = {}
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


LEAST_COVERED = 0.95
"""Least covered share of a window: its mean in flight may be wrong by 5 % (the method, 5.1 L1)."""


def health_of(
    samples: Iterable[dict[str, Any]],
    window: Window,
    lost_actors: Sequence[str] = (),
    replicas: Collection[str] | None = None,
) -> WindowEvidence:
    """Evidence from the samples that lie in the window: mean shares, longest stall, mean in flight."""
    actors: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for sample in samples:
        began_ns = sample["clock_ns"] - sample["span_s"] * NS
        if (
            began_ns >= window.window_start_ns - NS // 2
            and sample["clock_ns"] <= window.window_end_ns + NS // 2
        ):
            actors[sample["client_id"]].append(sample)
    health = {f"client-{client_id:02d}": _figures(rows) for client_id, rows in sorted(actors.items())}
    # Whole seconds that leave out more of the window have another mean.
    least_s = LEAST_COVERED * window.seconds
    whole = (rows for rows in actors.values() if sum(row["span_s"] for row in rows) >= least_s)
    means = [_mean(rows, "in_flight_mean") for rows in whole]
    means_known = [mean for mean in means if mean is not None]
    return WindowEvidence(
        expected_replicas=replicas,
        health=health or None,
        lost_actors=tuple(lost_actors),
        in_flight_mean=sum(means_known) if len(means_known) == len(actors) > 0 else None,
    )


def _figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    figures = {name: _mean(rows, name) for name in ("cpu_share", "run_share")}
    figures["stall_ms"] = max(row["stall_ms"] for row in rows)
    return {name: value for name, value in figures.items() if value is not None}


def _mean(rows: list[dict[str, Any]], name: str) -> float | None:
    samples = [row for row in rows if row[name] is not None]
    span_s = sum(row["span_s"] for row in samples)
    return sum(row[name] * row["span_s"] for row in samples) / span_s if span_s else None


BRIDGE_NS = 1 * NS
"""Arrivals at the old rate go on this long (real) after a window, so that deciding never leaves a gap."""
POLL_NS = NS // 2
LEAD_NS = NS // 5
"""A schedule reaches the load actors at least this long (real) before its first send."""


@dataclass(slots=True)
class LoadFeed:
    """The arrivals of a run: `free_ns` is when the next may begin, `next_seq` the number it gets.

    `samples` are those of the load actors since the window before. `plan_saved` gets every schedule before
    its first send, `reported` the rows of requests that ended.
    """

    target: Target
    plan: LoadPlan
    ledger: Ledger
    emit: Callable[..., None]
    plan_saved: Callable[[ArrivalSchedule], None]
    reported: Callable[[pa.Table], None]
    traffic: Traffic = field(init=False)
    next_seq: int = 0
    free_ns: int = 0
    began_ns: int = 0
    _elapsed_before_ns: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)
    _lost: list[LostActor] = field(default_factory=list)
    _silent: list[str] = field(default_factory=list)
    _replaced: int = 0

    def __post_init__(self) -> None:
        self.traffic = Traffic(self.plan.workload)

    def restore(self, past: Past) -> None:
        """Go on behind all that an earlier session of this run used."""
        self.next_seq, self.free_ns = past.next_seq, past.end_ns
        self._elapsed_before_ns = int(past.elapsed_s * NS)

    def elapsed_s(self) -> float:
        """Seconds of load after the warm-up, those of earlier sessions included."""
        return (self.free_ns - self.began_ns + self._elapsed_before_ns) / NS

    def uncharge(self, since_ns: int) -> None:
        """Take the time from an instant to the next free one out of the budget."""
        self._elapsed_before_ns -= self.free_ns - since_ns

    def next_start_ns(self) -> int:
        """The earliest start of what is offered next."""
        return max(self.free_ns, self.target.now_ns() + int(LEAD_NS * self.plan.time_scale))

    @property
    def bridge_ns(self) -> int:
        """Length of the bridge on the run's clock; deciding takes real time."""
        return int(BRIDGE_NS * self.plan.time_scale)

    def window(self, plan: WindowPlan) -> Window:
        """The window that is offered next, on the run's clock."""
        start_ns = self.next_start_ns()
        begin_ns = start_ns + int(plan.transition_s * NS)
        end_ns = begin_ns + int(plan.window_s * NS)
        nodes = self.plan.nodes
        return Window(plan.index, plan.kind, plan.rate_qps * nodes, nodes, start_ns, begin_ns, end_ns, end_ns)

    def draw(self, plan: WindowPlan, window: Window, rate_qps: float | Profile) -> ArrivalSchedule:
        """Draw the requests of a window; those of a pair are drawn like the window that it replays."""
        inner = "ramp" if window.kind == "ramp" else "window"
        begin_ns = window.start_ns + int(plan.lead_s * NS)
        bounds = {
            "transition": (begin_ns, window.window_start_ns),
            inner: (window.window_start_ns, window.planned_end_ns),
            "bridge": (window.planned_end_ns, window.planned_end_ns + self.bridge_ns),
        }
        draw = partial(self.traffic.draw, rate_qps, streams=self.plan.streams)
        seq, seed = self.next_seq, self.plan.seed
        if plan.pair is None:
            return draw(bounds, window_index=window.index, first_seq=seq, seed=seed)
        before = {"transition": (window.start_ns, begin_ns)}
        # Another seed: the numbers of this window and of the pair may be the same.
        lead = draw(before, window_index=window.index, first_seq=seq, seed=seed + 1)
        replayed = draw(bounds, window_index=plan.pair, first_seq=seq + len(lead), seed=seed)
        return lead.followed_by(replayed)

    def offer(self, schedule: ArrivalSchedule, until_ns: int) -> None:
        """Save a schedule, hand it to the target, and let time pass until `until_ns`."""
        self.plan_saved(schedule)
        self.ledger.plan(schedule)
        self.next_seq += len(schedule)
        self._take(self.target.run(schedule, until_ns))

    def offer_piece(
        self, index: int, piece: int, rate_qps: float, seconds: float, last: bool = False
    ) -> tuple[int, int]:
        """Offer a rate per node for so long ahead of a window, `last` without a bridge; returns its span."""
        start_ns = self.next_start_ns()
        end_ns = start_ns + int(seconds * NS)
        self.free_ns = end_ns + (0 if last else self.bridge_ns)
        schedule = self.traffic.draw(
            rate_qps * self.plan.nodes,
            {"bridge" if last else "transition": (start_ns, self.free_ns)},
            window_index=index,
            first_seq=self.next_seq,
            seed=self.plan.seed,
            streams=self.plan.streams,
            piece=piece,
        )
        self.offer(schedule, end_ns)
        return start_ns, end_ns

    def wait_until(self, until_ns: int) -> None:
        """Let time pass without new arrivals, and take in what is reported."""
        self._take(self.target.run(None, until_ns))

    def poll(self, count: Callable[[], int], limit_s: float) -> list[int]:
        """Offer nothing until a count, taken every half second, is 0 or time is over; returns the counts."""
        now_ns = self.target.now_ns()
        limit_ns = now_ns + int(limit_s * NS)
        self.wait_until(now_ns)
        counts = [count()]
        while counts[-1] and now_ns < limit_ns:
            now_ns += POLL_NS
            self.wait_until(now_ns)
            counts.append(count())
        return counts

    def refresh(self) -> None:
        """Take in what is known by now."""
        self.wait_until(self.target.now_ns())

    def missing_actors(self) -> list[str]:
        """Load actors that were lost and are not replaced, or whose host cannot be reached, each with why."""
        silent = [f"{actor} (its host cannot be reached)" for actor in self._silent]
        return [*(str(actor) for actor in self._lost[self._replaced :]), *silent]

    def replace_actors(self, silent: str | None = None) -> Stop | None:
        """Replace load actors that were lost, or wait for the hosts of `silent` ones.

        Returns why nothing more can be measured if that fails.
        """
        began_ns = self.target.now_ns()
        if why := silent or ", ".join(self._silent):
            self.emit("fault", text=f"{why}: waiting until it is back")
        elif lost := ", ".join(map(str, self._lost[self._replaced :])):
            self.emit("fault", text=f"lost {lost}: it is replaced where there is room")
        if not self.target.heal():
            self.refresh()
            missing = ", ".join(map(str, self._lost[self._replaced :])) or why
            return Stop("actor_lost", f"lost {missing}: nothing more can be measured")
        self.refresh()
        if replaced := ", ".join(map(str, self._lost[self._replaced :])):
            self.emit("healed", text=f"replaced {replaced}; what it owned is lost and its windows are void")
        else:
            waited_s = (self.target.now_ns() - began_ns) / NS / self.plan.time_scale
            self.emit(
                "healed", text=f"all load hosts answer again after {waited_s:.0f} s: the search goes on"
            )
        self._replaced = len(self._lost)
        return None

    def evidence_in(self, window: Window) -> WindowEvidence:
        """What the load actors show of a window that is over; earlier samples are forgotten."""
        evidence = health_of(self.samples, window, self.missing_actors(), self.plan.replicas)
        self.samples = [sample for sample in self.samples if sample["clock_ns"] > window.window_start_ns]
        return evidence

    def _take(self, observation: Observation) -> None:
        self.reported(observation.ended)
        self.ledger.take(observation)
        self.samples += observation.health
        self._lost, self._silent = observation.lost_actors, observation.silent_actors
