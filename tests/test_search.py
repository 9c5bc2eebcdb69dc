"""The search: its rules one by one, and its accuracy on a small token-budget queue of known capacity."""

import heapq
import math
from collections import deque
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analysis import dwell as counting
from analysis.capacity import Prior, posterior
from analysis.dwell import NS, Dwell, LimitCount, Window
from analysis.records import REQUESTS
from conf.schema import Lengths, Search, Slo, Workload
from loadgen import arrivals, search
from loadgen.search import Outcome, Segment, Start, Stop


class Queue:
    """The bench of the method, section 2.1: vLLM V1's token budget with guessed step costs, virtual time."""

    def __init__(self, seed: int) -> None:
        self.t, self.step, self.kv = 0.0, 0, 0
        self.due, self.prompt, self.out = [], [], []
        self.first, self.last, self.born = [], [], []
        self.waiting, self.decoding, self.partial = deque(), [], None
        self.rng = np.random.default_rng([seed, 77])
        self.noise = []

    def submit(self, schedule: arrivals.ArrivalSchedule) -> None:
        """Take arrivals, all later than any before."""
        n, k = len(self.due), len(schedule)
        self.due += (schedule.due_ns / NS).tolist()
        self.prompt += schedule.input_tokens.tolist()
        self.out += schedule.output_tokens.tolist()
        self.first += [math.nan] * k
        self.last += [math.nan] * k
        self.born += [0] * k
        self.waiting.extend(range(n, n + k))

    def retract(self) -> None:
        """Forget arrivals that are still to come."""
        while self.waiting and self.due[self.waiting[-1]] > self.t:
            self.waiting.pop()
            for column in (self.due, self.prompt, self.out, self.first, self.last, self.born):
                column.pop()

    def queued(self) -> bool:
        return bool(self.partial or (self.waiting and self.due[self.waiting[0]] <= self.t))

    def advance(self, until: float) -> None:
        """Run whole steps until the clock has passed `until`."""
        while self.t < until:
            if not self.decoding and not self.queued():
                self.t = min(until, self.due[self.waiting[0]]) if self.waiting else until
                continue
            self._step()

    def _step(self) -> None:
        if not self.noise:
            self.noise = self.rng.lognormal(0, 0.04, 4096).tolist()
        n = len(self.decoding)
        budget, done = 8192 - n, []
        while budget > 0 and n + len(done) < 256 and self.queued():
            key, left = self.partial or (self.waiting[0], self.prompt[self.waiting[0]])
            if self.partial is None:
                self.waiting.popleft()
            chunk = min(left, budget)
            budget -= chunk
            self.kv += chunk
            self.partial = (key, left - chunk) if chunk < left else None
            if self.partial is None:
                done.append(key)
        self.t += (0.012 + (8192 - budget) / 60000 + 4e-9 * self.kv) * self.noise.pop()
        self.step += 1
        self.kv += n
        for key in done:
            self.first[key] = self.last[key] = self.t
            self.born[key] = self.step
            heapq.heappush(self.decoding, (self.step + self.out[key] - 1, key))
        while self.decoding and self.decoding[0][0] <= self.step:
            _, key = heapq.heappop(self.decoding)
            self.last[key] = self.t
            self.kv -= self.prompt[key] + self.out[key] - 1

    def table(self, segments: list[int]) -> pa.Table:
        """Rows of all arrivals due by now; `segments` holds the segment of each."""
        now, n = self.t, int(np.searchsorted(self.due, self.t, side="right"))
        due, first, last = (np.array(c[:n]) for c in (self.due, self.first, self.last))
        born, out = np.array(self.born[:n]), np.array(self.out[:n])
        seen = np.where(born > 0, self.step - born + 1, 0)
        ok = (born > 0) & (seen >= out)
        last = np.where(ok, last, np.where(born > 0, now, np.nan))
        ns = lambda s: pa.array(np.nan_to_num(np.rint(s * NS)).astype(np.int64), mask=np.isnan(s))  # noqa: E731
        columns = {
            "seq": np.arange(n),
            "dwell": np.array(segments[:n], dtype=np.int16),
            "status": np.where(ok, "ok", "pending"),
            "due_ns": np.rint(due * NS).astype(np.int64),
            "send_offset_ns": np.zeros(n, dtype=np.int64),
            "first_token_offset_ns": ns(first - due),
            "last_token_offset_ns": ns(last - due),
            "end_offset_ns": ns(np.where(ok, last - due, np.nan)),
            "requested_input_tokens": np.array(self.prompt[:n], dtype=np.int32),
            "requested_output_tokens": out.astype(np.int32),
            "output_tokens": np.minimum(seen, out).astype(np.int32),
        }
        empty = [name for name in REQUESTS.names if name not in columns]
        full = columns | {name: pa.nulls(n, REQUESTS.field(name).type) for name in empty}
        arrays = [pa.array(full[f.name]).cast(f.type) for f in REQUESTS]
        return pa.Table.from_arrays(arrays, schema=REQUESTS)


VARIED = Workload("varied", Lengths(5600, "lognormal", 0.25), Lengths(140, "lognormal", 0.45))
S2 = Slo("s2", ttft_p90_ms=2000.0, tpot_p90_ms=60.0)


class Bench:
    """Drives a search over a `Queue` as a sweep drives it over a service."""

    def __init__(self, spec: Search, slo: Slo, workload: Workload, seed: int) -> None:
        self.spec, self.slo, self.workload, self.seed = spec, slo, workload, seed
        self.queue, self.segments, self.outcomes = Queue(seed), [], []

    def run(self, start: Start) -> Stop:
        """Run segments until the search stops."""
        while True:
            step = search.next_segment(self.spec, start, self.outcomes, self.queue.t)
            if isinstance(step, Stop):
                return step
            self._segment(step)

    def _counted(self, *windows: Window) -> list[Dwell]:
        rows, now_ns = self.queue.table(self.segments), round(self.queue.t * NS)
        return [counting.count(rows, window, self.slo, self.workload, now_ns) for window in windows]

    def _segment(self, segment: Segment) -> None:
        queue = self.queue
        settled_by = queue.t + self.spec.settle_s
        while segment.settle_before and queue.queued() and queue.t < settled_by:
            queue.advance(queue.t + 0.2)
        window = self._plan(segment)
        bounds = {
            "transition": (window.start_ns, window.window_start_ns),
            "window": (window.window_start_ns, window.planned_end_ns),
        }
        traffic = arrivals.Traffic(self.workload)
        schedule = traffic.draw(segment.rate_qps, bounds, dwell=segment.index, first_seq=0, seed=self.seed)
        queue.submit(schedule)
        self.segments += [segment.index] * len(schedule)
        window = self._watch(segment, window)
        self._judge(segment, window)

    def _plan(self, segment: Segment) -> Window:
        start = round(self.queue.t * NS)
        opens = start + round(segment.transition_s * NS)
        end = opens + round(segment.window_s * NS)
        return Window(segment.index, segment.kind, segment.rate_qps, 1, start, opens, end, end)

    def _watch(self, segment: Segment, window: Window) -> Window:
        queue, at = self.queue, window.window_start_ns / NS + search.ABORT_FROM_S
        while segment.kind == "dwell" and at < window.planned_end_ns / NS:
            queue.advance(at)
            now_ns = round(queue.t * NS)
            waits = counting.waiting(queue.table(self.segments), now_ns)
            if search.should_abort(*self._counted(window), waits, self.slo, now_ns):
                queue.retract()
                del self.segments[len(queue.due) :]
                return replace(window, window_end_ns=now_ns, aborted=True)
            at += search.ABORT_EVERY_S
        queue.advance(window.planned_end_ns / NS)
        return window

    def _judge(self, segment: Segment, window: Window) -> None:
        *before, now = self._counted(*(outcome.dwell for outcome in self.outcomes), window)
        self.outcomes = [replace(o, dwell=dwell) for o, dwell in zip(self.outcomes, before, strict=True)]
        bad = segment.kind == "ramp" and search.bad_step(now)
        self.outcomes.append(Outcome(segment, now, aborted=window.aborted, bad=bad))


SPEC = Search("test", budget_s=900.0)


def done(segment, over=0, *, bad=False, void=False, aborted=False, e2e_s=None):
    """The outcome of a segment in whose 300 requests `over` were over the TPOT limit."""
    spread = tuple(int(part) for part in np.diff(np.round(np.linspace(0, over, 10))))
    seen = (33, 33, 34) * 3
    window = (segment.index, segment.kind, segment.rate_qps, 1, 0, 0, 45 * NS, 45 * NS, aborted)
    dwell = Dwell(
        *window,
        weight=0.0 if void else 1.0,
        requests=300,
        log_work=math.log(segment.rate_qps),
        median_e2e_s=e2e_s,
        ttft=LimitCount(0, 300, (0,) * 9, seen),
        tpot=LimitCount(over, 300, spread, seen),
    )
    return Outcome(segment, dwell, aborted=aborted, void=void, bad=bad)


def played(start, *events, spec=SPEC, elapsed_s=0.0):
    """All segments of a search whose outcomes were `events`, and what it wants next."""
    outcomes = []
    for event in events:
        step = search.next_segment(spec, start, outcomes, elapsed_s)
        outcomes.append(done(step, **event))
    return [outcome.segment for outcome in outcomes], search.next_segment(spec, start, outcomes, elapsed_s)


GOOD, BAD, VOID = {}, {"bad": True}, {"void": True}
RAMPED = (GOOD, GOOD, BAD, BAD)
GUESS = Start(roofline_qps=8.0)


def test_the_ramp_climbs_from_an_eighth_of_the_guess():
    steps, following = played(GUESS, GOOD, GOOD)
    assert [step.rate_qps for step in (*steps, following)] == [1.0, 1.25, 1.5625]
    assert (following.kind, following.transition_s, following.window_s) == ("ramp", 3.0, 12.0)
    assert not following.settle_before
    assert played(Start())[1].rate_qps == SPEC.lowest_qps


@pytest.mark.parametrize("event", [BAD, VOID])
def test_a_bad_step_is_repeated_once_after_settling(event):
    _, again = played(GUESS, GOOD, event)
    assert (again.rate_qps, again.settle_before) == (1.25, True)
    _, up = played(GUESS, GOOD, event, GOOD)
    assert (up.rate_qps, up.settle_before) == (1.5625, False)


def test_a_second_bad_step_ends_the_ramp_between_good_and_bad():
    _, first = played(GUESS, *RAMPED)
    ramp = math.sqrt(1.25 * 1.5625)
    assert first.kind == "dwell" and first.index == 4
    assert first.rate_qps == pytest.approx(ramp * math.exp(-0.11))
    assert (first.transition_s, first.window_s, first.settle_before) == (30.0, 45.0, True)
    steps, _ = played(GUESS, *RAMPED)
    prior = search.prior(SPEC, GUESS, [done(s, **e) for s, e in zip(steps, RAMPED, strict=True)])
    assert (prior.centre, prior.sd) == (pytest.approx(math.log(ramp) - 0.08), 0.25)
    assert search.prior(SPEC, GUESS, [done(steps[0])]) is None


def test_a_ramp_that_starts_too_hot_goes_down_and_then_closes_in():
    steps, first = played(GUESS, BAD, BAD, BAD, BAD, GOOD, GOOD, GOOD, GOOD)
    rates = [1, 1, 0.5, 0.5, 0.25, 0.3125, 0.390625, 0.48828125]
    assert [step.rate_qps for step in steps] == pytest.approx(rates)
    assert [step.settle_before for step in steps[:5]] == [False, True, True, True, True]
    assert first.rate_qps == pytest.approx(math.sqrt(rates[-1] * 0.5) * math.exp(-0.11))


def test_it_gives_up_below_the_lowest_rate_and_above_the_highest():
    spec = replace(SPEC, lowest_qps=0.6, highest_qps=1.4)
    steps, stop = played(GUESS, BAD, BAD, BAD, BAD, spec=spec)
    assert steps[-1].rate_qps == 0.6 and stop.kind == "slo_not_met_at_lowest"
    steps, stop = played(GUESS, GOOD, GOOD, GOOD, spec=spec)
    assert steps[-1].rate_qps == 1.4 and stop.kind == "above_highest"


def test_a_ramp_out_of_budget_stops_with_the_last_good_rate():
    steps, _ = played(GUESS, GOOD, GOOD)
    stop = search.next_segment(SPEC, GUESS, [done(step) for step in steps], 886.0)
    assert stop.kind == "budget" and "1.25 QPS per node was good" in stop.reason


def test_a_prediction_replaces_the_ramp_only_where_asked_and_known():
    quick = replace(SPEC, start="prediction")
    known = Start(roofline_qps=8.0, prediction_qps=6.0)
    _, first = played(known, spec=quick)
    assert first.kind == "dwell" and first.rate_qps == pytest.approx(6 * math.exp(-0.05))
    assert (first.transition_s, first.settle_before) == (30.0, False)
    assert search.prior(quick, known, []).centre == math.log(6)
    assert played(known)[1].kind == played(GUESS, spec=quick)[1].kind == "ramp"


def test_dwells_spread_around_the_posterior_median():
    steps, following = played(GUESS, *RAMPED, *[{"over": 30}] * 6)
    dwells = [done(step, over=30).dwell for step in steps[4:]]
    belief = Prior(math.log(math.sqrt(1.25 * 1.5625)) - 0.08, 0.25)
    for n, step in enumerate([*steps[5:], following], start=1):
        median = posterior(dwells[:n], belief).qps_per_node
        offset = (0.0, -0.03, 0.02, -0.015)[(n - 1) % 4]
        capped = min(median * math.exp(offset), dwells[n - 1].rate_qps * math.exp(0.1))
        assert step.rate_qps == pytest.approx(capped)
        assert (step.transition_s, step.settle_before) == (15.0, False)


@pytest.mark.parametrize(("over", "step_up"), [(0, 0.25), (1, 0.10)])
def test_a_step_up_is_small_unless_nothing_was_over(over, step_up):
    spec, start = replace(SPEC, start="prediction"), Start(prediction_qps=8.0)
    low = replace(search.next_segment(spec, start, [], 0.0), rate_qps=4.0)
    raised = search.next_segment(spec, start, [done(low, over=over)], 0.0)
    assert raised.rate_qps == pytest.approx(4 * math.exp(step_up))
    assert "small step up" in raised.reason


def test_after_an_abort_it_settles_and_waits_twice_as_long():
    _, following = played(GUESS, *RAMPED, GOOD, {"over": 250, "aborted": True})
    assert (following.settle_before, following.transition_s) == (True, 30.0)


def test_the_transition_lasts_two_answers_but_not_for_ever():
    assert played(GUESS, *RAMPED, GOOD, {"e2e_s": 20.0})[1].transition_s == 40.0
    assert played(GUESS, *RAMPED, GOOD, {"e2e_s": 900.0})[1].transition_s == SPEC.settle_s


def test_the_budget_ends_the_dwells_but_grants_the_least_number():
    events = (*RAMPED, *[GOOD] * 6)
    outcomes = [done(s, **e) for s, e in zip(played(GUESS, *events)[0], events, strict=True)]
    assert search.next_segment(SPEC, GUESS, outcomes, 839.0).kind == "dwell"
    assert search.next_segment(SPEC, GUESS, outcomes, 841.0).kind == "budget"
    assert search.next_segment(SPEC, GUESS, outcomes[:-1], 5000.0).kind == "dwell"
    void = [replace(o, void=o.segment.kind == "dwell") for o in outcomes]
    assert search.next_segment(SPEC, GUESS, void, 5000.0).kind == "dwell"
    assert search.next_segment(SPEC, GUESS, [*void, *void[4:]], 5000.0).kind == "budget"


def test_a_void_dwell_does_not_move_the_posterior():
    events = (*RAMPED, {"over": 30}, GOOD)
    *outcomes, last = [done(s, **e) for s, e in zip(played(GUESS, *events)[0], events, strict=True)]
    void = [done(last.segment, over=over, void=True, aborted=True) for over in (0, 300)]
    few, many = (search.next_segment(SPEC, GUESS, [*outcomes, outcome], 0.0) for outcome in void)
    assert few == many


def window_of(requests, ttft, tpot, paced):
    return Dwell(
        0, "dwell", 8.0, 1, 0, 0, 45 * NS, 45 * NS,
        requests=requests,
        ttft=LimitCount(ttft, requests, (), ()),
        tpot=LimitCount(tpot, paced, (), ()),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dwell", "bad"),
    [
        (window_of(100, 15, 0, 100), False),
        (window_of(100, 16, 0, 100), True),
        (window_of(100, 0, 20, 100), False),
        (window_of(100, 0, 21, 100), True),
        (window_of(100, 0, 2, 3), False),
        (window_of(100, 0, 3, 3), True),
        (window_of(100, 0, 4, 4), True),
        (window_of(0, 0, 0, 0), False),
    ],
)
def test_bad_steps(dwell, bad):
    assert search.bad_step(dwell) is bad


@pytest.mark.parametrize(
    ("over", "waiting", "at_s", "stops"),
    [(180, 58, 20, False), (181, 0, 20, True), (0, 59, 20, True), (181, 59, 9, False)],
)
def test_aborts(over, waiting, at_s, stops):
    answer = search.should_abort(window_of(200, over, 0, 0), waiting, S2, at_s * NS)
    assert (answer is not None) is stops


def test_the_queue_of_the_bench_conserves_requests_and_tokens():
    queue = Queue(1)
    queue.submit(arrivals.Traffic(VARIED).draw(6.0, {"window": (0, 60 * NS)}, dwell=0, first_seq=0, seed=1))
    queue.advance(30.0)
    early = queue.table([0] * len(queue.due))
    queue.advance(200.0)
    rows = queue.table([0] * len(queue.due))
    assert early.num_rows < rows.num_rows == len(queue.due)
    assert set(rows["status"].to_pylist()) == {"ok"} and queue.kv == 0
    assert rows["output_tokens"] == rows["requested_output_tokens"]
    assert early["first_token_offset_ns"].null_count < early.num_rows


def test_the_search_replays_from_its_outcomes():
    bench = Bench(replace(SPEC, budget_s=500.0), S2, VARIED, seed=5)
    bench.run(GUESS)
    for n, outcome in enumerate(bench.outcomes):
        again = search.next_segment(SPEC, GUESS, bench.outcomes[:n], 0.0)
        assert (again.kind, again.settle_before) == (outcome.segment.kind, outcome.segment.settle_before)
        if again.kind == "ramp":
            assert again == outcome.segment


def test_an_impossible_and_an_idle_limit_stop_at_the_ends():
    spec = replace(SPEC, lowest_qps=0.5, highest_qps=2.0)
    assert Bench(spec, Slo("x", 50.0, 60.0), VARIED, 1).run(GUESS).kind == "slo_not_met_at_lowest"
    assert Bench(spec, Slo("x", 9000.0, 900.0), VARIED, 1).run(GUESS).kind == "above_highest"


S2_CAPACITY_QPS = 6.883
"""p90 TPOT = 60 ms in `Queue`: 160 virtual hours at each of 6.7 .. 7.1 QPS, logit line through the shares
over the limit (slope 14.9); the method, section 2.1, has 6.892 and 15 for its own bench."""


def searched(spec, start_for, seeds):
    """(ln error, interval covers, certified violates) of whole searches, one row per seed."""
    rows = []
    for seed in seeds:
        start = start_for(np.random.default_rng(seed))
        bench = Bench(spec, S2, VARIED, seed)
        assert bench.run(start).kind == "budget"
        found = posterior([o.dwell for o in bench.outcomes], search.prior(spec, start, bench.outcomes))
        covers = found.low <= S2_CAPACITY_QPS <= found.high
        error = math.log(found.qps_per_node / S2_CAPACITY_QPS)
        rows.append((error, covers, found.certified > S2_CAPACITY_QPS))
    return np.array(rows, dtype=float)


@pytest.mark.slow
def test_fifteen_minutes_find_the_capacity_within_their_interval():
    """Measured over 200 seeds: bias +0.3 %, RMSE 1.6 %, coverage .97, certified too high in .055."""
    rows = searched(SPEC, lambda rng: Start(roofline_qps=9.0 * math.exp(rng.uniform(-0.35, 0.35))), range(24))
    error, covers, violates = rows.T
    assert abs(error.mean()) < 0.02
    assert math.sqrt((error**2).mean()) < 0.03
    assert covers.mean() >= 0.8
    assert violates.mean() <= 0.25


def test_three_minutes_from_a_prediction_are_wide_but_honest():
    quick = Search("quick", budget_s=180.0, start="prediction", min_dwells=2)
    rows = searched(
        quick, lambda rng: Start(prediction_qps=S2_CAPACITY_QPS * math.exp(rng.normal(0, 0.15))), range(60)
    )
    error, covers, violates = rows.T
    assert abs(error.mean()) < 0.08
    assert covers.mean() >= 0.8
    assert violates.mean() <= 0.15
