"""analysis.capacity.window_counts by hand, and .posterior on windows of known truth."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity.kernel import LEAST_REQUESTS_FELT, Kernel, log_loads
from analysis.capacity.limit_posterior import E2E_UNKNOWN_S, Prior
from analysis.capacity.posterior import DOUBT, posterior
from analysis.capacity.rate_shift import population_shift
from analysis.capacity.share_curves import logit
from analysis.capacity.window_counts import (
    LOOK_AHEAD,
    LOOK_BACK,
    NS,
    LimitCount,
    Window,
    count,
    request_work,
    tpot_so_far,
    waiting,
)
from analysis.rows.records import table
from conf.specs.experiment import Arrivals, Lengths, Slo, Workload
from loadgen.search.window_plan import WindowPlan
from tests.support.search.search_windows import limit_count, on_the_curve, window
from tests.support.virtual.fluid import Fluid
from tests.support.words.words import TABLES

MS = 1_000_000
SLO = Slo("s", ttft_p90_ms=1000.0, tpot_p90_ms=50.0)
MEANS = Workload("w", Lengths(100), Lengths(50))
WINDOW = Window(3, "window", 2.0, 1, 0, 10 * NS, 55 * NS, 55 * NS)


def row(due_s, status="ok", first_ms=500, tokens=50, tpot_ms=20.0, **more):
    last = None if first_ms is None else int((first_ms + tpot_ms * (tokens - 1)) * MS)
    return {
        "window_index": 3,
        "status": status,
        "due_ns": int(due_s * NS),
        "send_offset_ns": 0,
        "first_token_offset_ns": None if first_ms is None else first_ms * MS,
        "last_token_offset_ns": last,
        "end_offset_ns": None if status == "pending" else last,
        "requested_input_tokens": 100,
        "requested_output_tokens": 50,
        "output_tokens": tokens,
    } | more


def counted(*rows, window=WINDOW, now_s=60):
    return count(table(rows), window, SLO, MEANS, int(now_s * NS))


def both(counts):
    return [(limit.over, limit.determined) for limit in (counts.over("ttft"), counts.over("tpot"))]


@pytest.mark.parametrize(("request_row", "ttft", "tpot"), TABLES["requests over the bounds"])
def test_labels(request_row, ttft, tpot):
    window = replace(WINDOW, window_end_ns=60 * NS, planned_end_ns=60 * NS)
    assert both(counted(row(**request_row), window=window)) == [tuple(ttft), tuple(tpot)]


@pytest.mark.parametrize(
    ("events", "tokens", "first"),
    [
        (20, 20, 1),  # an event a token
        (10, 10, 1),  # too few to have a pace
        (20, 20, 2),
    ],
)
def test_an_answer_in_flight_has_as_many_tokens_an_event_as_the_whole_ones(events, tokens, first):
    """Whole answers hold 50 tokens in 25 events: the one in flight is half as slow as its events."""
    whole = row(20, reads=25, events=25)
    flying = row(
        55, "pending", first_ms=500, tokens=tokens, reads=events, events=events, first_read_tokens=first
    )
    pace_ms = tpot_so_far(table([whole, flying]), 60 * NS)[1]
    assert np.isnan(pace_ms) if events < 15 else pace_ms == pytest.approx(4500 / (2 * (events - first)))


def test_an_answer_in_flight_whose_server_counts_its_tokens_needs_no_guess():
    whole, flying = (
        row(20, reads=25, events=25),
        row(55, "pending", first_ms=500, tokens=41, events=20, reads=20),
    )
    assert tpot_so_far(table([whole, flying]), 60 * NS)[1] == pytest.approx(4500 / 40)


def test_only_the_requests_due_in_the_window_of_this_window_count():
    rows = [row(9.99), row(10), row(54.99), row(55), row(20, window_index=2), row(30, phase="retracted")]
    counts = counted(*rows)
    assert (counts.requests, counts.completed) == (2, 2)
    assert counted(*rows, now_s=30).requests == 1


def test_a_late_finisher_changes_its_old_window():
    early = counted(row(54), row(54.5, "pending", first_ms=None, tokens=None), now_s=55)
    late = counted(row(54), row(54.5, first_ms=4000), now_s=70)
    assert both(early) == [(0, 1), (0, 1)]
    assert both(late) == [(1, 2), (0, 2)]
    assert (early.pending, late.pending) == (1, 0)


def test_blocks_are_five_seconds_of_due_time_and_add_up():
    counts = counted(row(10), row(14.99, first_ms=2000), row(15, first_ms=2000), row(54.9))
    assert counts.over("ttft").block_over == (1, 1, 0, 0, 0, 0, 0, 0, 0)
    assert counts.over("ttft").block_determined == (2, 1, 0, 0, 0, 0, 0, 0, 1)
    assert (counts.over("ttft").over, counts.over("ttft").determined, counts.over("ttft").share) == (
        2,
        4,
        0.5,
    )


def test_realised_work_is_per_node_and_in_mean_requests():
    heavy = row(30, requested_input_tokens=300, requested_output_tokens=50)
    rows = [row(20), row(21), heavy]
    counts = counted(*rows, window=replace(WINDOW, nodes=2))
    assert math.exp(counts.log_work) == pytest.approx((1 + 1 + 2) / 45 / 2)
    assert counts.work_var == pytest.approx(np.var([1, 1, 2]))
    ended = replace(WINDOW, window_end_ns=40 * NS, aborted=True)
    assert math.exp(counted(*rows, window=ended).log_work) == pytest.approx(4 / 30)


def test_cached_tokens_are_no_work():
    """Half of each prompt is shared: the mean request is 50 + 2 * 50, and so is one of 100 tokens."""
    half = replace(MEANS, prefix_hit=0.5)
    made = [row(20, shared_tokens=50), row(21, requested_input_tokens=400, shared_tokens=200), row(22)]
    assert request_work(table(made), half).tolist() == pytest.approx([1, 2, 200 / 150])
    assert request_work(table(made), MEANS).tolist() == [1, 2.5, 1], "without a hit rate nothing is cached"


@pytest.mark.parametrize(("age_ms", "known"), [(1050, False), (1399, False), (1401, True)])
def test_a_fast_clock_multiplies_the_way_in_the_age_of_what_still_waits(age_ms, known):
    waits = row(60 - age_ms / 1e3, "pending", first_ms=None, tokens=None)
    window = replace(WINDOW, window_end_ns=60 * NS, planned_end_ns=60 * NS)
    assert both(counted(waits | {"time_scale": 5.0}, window=window))[0] == (known, known)
    assert both(counted(waits | {"time_scale": 1.0}, window=window))[0] == (1, 1)


@pytest.mark.parametrize(("first_ms", "counts"), [(999, (0, 1)), (1399, (0, 0)), (1401, (1, 1))])
def test_a_fast_clock_multiplies_the_way_to_a_first_token_whose_answer_goes_on(first_ms, counts):
    begun = row(50, "pending", first_ms=first_ms, tokens=3)
    assert both(counted(begun | {"time_scale": 5.0}))[0] == counts
    assert both(counted(begun | {"time_scale": 1.0}))[0] == (int(first_ms > 1000), 1)


def test_the_load_of_every_block_reaches_beyond_the_window():
    rows = [
        row(3, window_index=2),
        *map(row, (9, 12, 12.5, 54, 55.5)),
        row(64, window_index=4),
        row(66, window_index=4),
    ]
    load = counted(*rows, now_s=70).load
    known = {i - LOOK_BACK + 12: value for i, value in enumerate(load) if value is not None}
    # From the first arrival to the last of the next window; what was cut is per second of what is known.
    assert len(load) == LOOK_BACK + 9 + LOOK_AHEAD and list(known) == list(range(10, 24))
    assert [known[i] * 5 for i in (11, 12, 13, 20, 21)] == [1, 2, 0, 1, 1]
    assert known[10] == 1 / 2 and known[23] == 0
    alone = counted(*rows[:6], now_s=70).load
    assert alone[LOOK_BACK + 9] is None and alone[LOOK_BACK + 8] * 5 == 1


def test_bursty_arrivals_vary_more_than_their_mean():
    bursty = replace(MEANS, arrivals=Arrivals("gamma", 0.25))
    assert count(table([row(20)]), WINDOW, SLO, bursty, 60 * NS).arrivals_var == 4.0
    assert counted(row(20)).arrivals_var == 1.0


def test_an_empty_window_has_no_work_and_no_share():
    counts = counted()
    assert (counts.requests, counts.log_work, counts.over("ttft").share) == (0, -math.inf, None)


def test_waiting_counts_those_without_a_first_token_yet():
    ended = [row(9.8, status, first_ms=None, tokens=None) for status in ("pending", "conn_error")]
    rows = table([row(9.9), row(9.0), *ended, row(10.1)])
    assert waiting(rows, 10 * NS) == 2
    assert count(rows, replace(WINDOW, start_ns=10 * NS), SLO, MEANS, 60 * NS).waiting_at_start == 2


def test_a_window_can_be_counted_again_from_itself():
    first = counted(row(20), now_s=30)
    assert counted(row(20), window=first, now_s=60) == counted(row(20))


def simulated(qps, over, requests=300, index=0, limit="tpot", **more):
    """A window at realised load `qps` with `over` of `requests` over one limit."""
    limits = dict.fromkeys(("ttft", "tpot"), limit_count(0, requests)) | {limit: limit_count(over, requests)}
    return window(qps, limits, requests, index, **{"arrivals_var": 0.0} | more)


def with_limit(counts, limit, counted):
    """The counts with other counts against one limit."""
    return replace(counts, limits={**counts.limits, limit: counted})


@pytest.mark.parametrize(
    ("slope", "guess"), [(12.0, 6.5), (20.0, 6.5), (34.0, 6.5), (20.0, 1.75), (20.0, 28.0)]
)
def test_it_finds_the_root_of_the_curve_though_the_prior_be_wrong_by_a_factor_of_four(slope, guess):
    windows = on_the_curve(7.0, slope, np.geomspace(6, 8, 12))
    capacity = posterior(windows, Prior(math.log(guess)))
    assert capacity.qps_per_node == pytest.approx(7.0, rel=0.01)
    assert capacity.low < 7.0 < capacity.high
    assert capacity.limits["tpot"].slope == pytest.approx(slope, rel=0.25)
    assert capacity.binding == "tpot" and capacity.binding_probability > 0.9
    assert not capacity.open_above and not capacity.open_below
    assert (capacity.limits["tpot"].informative, capacity.limits["ttft"].informative) == (True, False)


def test_a_prior_that_the_windows_moved_away_from_does_not_pull_the_estimate_back():
    """Hundred requests each say little, but all windows are at a third of the prior."""
    seen = on_the_curve(3.0, 25, [2.8, 2.9, 3.0, 3.1], requests=100)
    right, wrong = (posterior(seen, Prior(math.log(qps))) for qps in (3.0, 9.0))
    assert wrong.qps_per_node == pytest.approx(right.qps_per_node, rel=0.04)
    assert wrong.high < 2 * right.high


def test_population_shift_solves_its_equation():
    """Loads are the counts of a Poisson process with mean 150, met by as many requests as they hold."""
    slopes = np.array([10.0, 20.0, 40.0])
    counts = np.random.default_rng(1).poisson(150, 400_000)
    for slope, d in zip(slopes, population_shift(slopes, 1 / 150, 1 / 150), strict=True):
        share = 1 / (1 + np.exp(-(logit(0.1) + slope * (d + np.log(counts / 150)))))
        assert np.average(share, weights=counts) == pytest.approx(0.1, abs=7e-4)
    np.testing.assert_allclose(population_shift(slopes, 0.0, 0.0), 0, atol=1e-5)


def following(kernel, **more):
    """Windows whose failures follow the load around each block."""
    rng, windows = np.random.default_rng(3), []
    for i in range(12):
        counts = simulated(
            7.0, 0, 900, i, load=tuple(rng.gamma(150, 7 / 150, len(simulated(7.0, 0).load))), **more
        )
        share = 1 / (1 + np.exp(-(logit(0.1) + 30 * (log_loads([counts], [kernel])[0] - math.log(7)))))
        over = tuple(int(n) for n in rng.binomial(100, share))
        windows.append(with_limit(counts, "tpot", LimitCount(sum(over), 900, over, (100,) * 9)))
    return windows


def test_bursts_of_load_explain_bursts_of_failures():
    """Failures that follow the load around each block, with that load known and with only its mean known."""
    explained = following(Kernel.of("tpot", E2E_UNKNOWN_S))
    blind = [replace(counts, load=simulated(7.0, 0).load) for counts in explained]
    seeing, guessing = (posterior(windows, Prior(math.log(7)), level=0.0) for windows in (explained, blind))
    assert seeing.limits["tpot"].phi < guessing.limits["tpot"].phi / 2.5
    assert seeing.high / seeing.low < 1.04 < guessing.high / guessing.low
    assert seeing.low < 7.0 < seeing.high
    assert seeing.limits["tpot"].slope == pytest.approx(30, rel=0.25)


def test_clustered_failures_widen_the_interval():
    over = [(rate, 300 / (1 + 9 * math.exp(-25 * math.log(rate / 7)))) for rate in np.geomspace(6.3, 7.7, 12)]
    even = [simulated(rate, round(each), index=i) for i, (rate, each) in enumerate(over)]
    uneven = [
        simulated(rate, round(each * (1.7, 0.3)[i % 2]), index=i) for i, (rate, each) in enumerate(over)
    ]
    calm, rough = (posterior(d, Prior(math.log(7))) for d in (even, uneven))
    assert rough.limits["tpot"].phi > 1.3 * calm.limits["tpot"].phi
    assert rough.high / rough.low > calm.high / calm.low
    assert rough.certified < calm.certified


def test_two_limits_at_one_rate_share_the_binding_and_lower_the_capacity():
    one = on_the_curve(7.0, 20.0, np.geomspace(6, 8, 12))
    two = [with_limit(counts, "ttft", counts.over("tpot")) for counts in one]
    single, double = (posterior(d, Prior(math.log(7))) for d in (one, two))
    assert double.qps_per_node < single.qps_per_node
    assert double.binding_probability == pytest.approx(0.5, abs=0.01)
    assert double.limits["ttft"].qps_per_node == pytest.approx(double.limits["tpot"].qps_per_node)


def test_a_bound_that_a_joint_one_implies_does_not_lower_the_capacity():
    def capacity(*limits):
        windows = on_the_curve(7.0, 20.0, np.geomspace(6, 8, 12))
        seen = [replace(window, limits=dict.fromkeys(limits, window.over("tpot"))) for window in windows]
        return posterior(seen, Prior(math.log(7)))

    alone, members, pooled = capacity("joint_p90"), ("ttft", "tpot", "joint_p90"), "itl_pooled_p90"
    assert capacity(*members).qps_per_node == pytest.approx(alone.qps_per_node)
    assert capacity(*members).binding == "joint_p90" and tuple(capacity(*members).limits) == members
    # A rarer quantile can be the stricter one, and pooled gaps belong to no request.
    assert capacity("tpot_p95", "joint_p90").binding == "tpot_p95"
    assert capacity(pooled, "joint_p90").qps_per_node < alone.qps_per_node


def test_void_windows_ramp_steps_and_tiny_windows_say_nothing():
    good = on_the_curve(7.0, 20.0, np.geomspace(6, 8, 6))
    noise = [
        simulated(6.0, 300, index=20, weight=0.0),
        replace(simulated(6.0, 300, index=21), kind="ramp"),
        simulated(6.0, 9, requests=9, index=22),
    ]
    capacity = posterior([*good, *noise], Prior(math.log(7)))
    assert capacity == posterior(good, Prior(math.log(7)))
    assert capacity.windows == (0, 1, 2, 3, 4, 5)


def test_a_hot_window_says_only_that_the_root_lies_below():
    good = on_the_curve(7.0, 20.0, np.geomspace(6, 7.2, 6))
    known = posterior(good, Prior(math.log(7)))
    above, aborted, below = (
        posterior([*good, simulated(q, 2900, 3000, 9, aborted=cut)], Prior(math.log(7))).qps_per_node
        for q, cut in ((9.0, False), (9.0, True), (6.0, False))
    )
    assert above == pytest.approx(known.qps_per_node, rel=0.005) == aborted
    assert below < 0.98 * known.qps_per_node


def test_windows_on_one_side_of_the_limit_are_a_bound_and_none_are_nothing():
    def capacity(over, *rates):
        return posterior([simulated(q, over, index=i) for i, q in enumerate(rates)], Prior(math.log(7)))

    below, above, none = capacity(0, 5, 6, 7), capacity(300, 7, 6, 5), capacity(0)
    ends = [(each.open_above, each.open_below) for each in (below, above, none)]
    assert ends == [(True, False), (False, True), (True, True)]
    assert below.certified > 6.2 and above.qps_per_node < 5.5
    assert none.windows == () and none.low < 7 < none.high


def test_a_limit_that_never_applies_does_not_bind():
    none = LimitCount(0, 0, (0,) * 9, (0,) * 9)
    windows = on_the_curve(7.0, 20.0, np.geomspace(6, 8, 12), limit="ttft")
    capacity = posterior([with_limit(counts, "tpot", none) for counts in windows], Prior(math.log(7)))
    assert (capacity.binding, capacity.binding_probability) == ("ttft", 1.0)
    assert capacity.qps_per_node == pytest.approx(capacity.limits["ttft"].qps_per_node)


counts = st.lists(st.tuples(st.floats(4, 10), st.integers(0, 100), st.integers(0, 100)), max_size=8)


@settings(max_examples=20)
@given(counts, st.floats(4, 10))
def test_the_posterior_is_ordered_finite_and_falls_when_more_are_over(seen, guess):
    def windows(more):
        return [
            with_limit(
                simulated(q, min(100, tpot + more), 100, i), "ttft", simulated(q, ttft, 100).over("tpot")
            )
            for i, (q, ttft, tpot) in enumerate(seen)
        ]

    before, after = (posterior(windows(more), Prior(math.log(guess), 0.3)) for more in (0, 100))
    for capacity in (before, after):
        figures = [0, capacity.low, capacity.certified, capacity.qps_per_node, capacity.high]
        assert figures == sorted(figures) and math.isfinite(capacity.high)
        assert 0.5 <= capacity.binding_probability <= 1
    # With an open end below nothing is claimed but the upper bound.
    assert after.open_below or after.qps_per_node <= before.qps_per_node * 1.05


def on_a_floor(floor, rates=(4.0, 5.0, 6.0, 6.5, 7.0, 7.3, 7.6), capacity=7.0):
    """Windows with a share of `floor` over the limit at any load, and a tenth at the capacity."""
    rise = (0.1 - floor) / (1 - floor)
    shares = [floor + (1 - floor) / (1 + (1 / rise - 1) * (capacity / q) ** 25) for q in rates * 3]
    return [
        simulated(q, round(300 * share), 300, i)
        for i, (q, share) in enumerate(zip(rates * 3, shares, strict=True))
    ]


@pytest.mark.parametrize("floor", [0.0, 0.035, 0.05, 0.075])
def test_a_share_over_at_any_load_is_told_from_what_the_load_adds(floor):
    capacity = posterior(on_a_floor(floor), Prior(math.log(6)))
    assert capacity.limits["tpot"].floor == pytest.approx(floor, abs=0.015)
    assert capacity.low < 7.0 < capacity.high and not (capacity.open_above or capacity.open_below)
    assert capacity.qps_per_node == pytest.approx(7.0, rel=0.04)


def test_a_floor_near_what_is_allowed_is_doubtful_and_its_ends_lie_farther_off(monkeypatch):
    doubtful = posterior(on_a_floor(0.09), Prior(math.log(6)))
    assert doubtful.limits["tpot"].slope_unusual
    monkeypatch.setattr("analysis.capacity.posterior.DOUBT", 1.0)
    alone = posterior(on_a_floor(0.09), Prior(math.log(6)))
    for end in ("low", "high", "certified"):
        far, near = (math.log(getattr(found, end) / found.qps_per_node) for found in (doubtful, alone))
        assert far == pytest.approx(DOUBT * near)


def test_with_a_floor_above_what_is_allowed_no_rate_keeps_the_limit():
    capacity = posterior(
        [simulated(q, 60, 300, i) for i, q in enumerate((2, 3, 4, 5, 6) * 4)], Prior(math.log(6))
    )
    assert capacity.open_below and capacity.limits["tpot"].floor > 0.1 and capacity.binding == "tpot"


def test_a_service_may_have_been_in_good_times_the_more_so_the_shorter_it_was_seen():
    rates = (6.8, 7.0, 7.2)
    short, long, steady = (
        posterior(on_the_curve(7.0, 25, rates * times), Prior(math.log(7)), level=0.0 if times > 6 else None)
        for times in (1, 6, 7)
    )
    assert short.low < 0.96 * long.low < 0.96 * 0.98 * steady.low
    assert short.high > 1.01 * long.high > 1.01 * 1.005 * steady.high
    assert short.certified < long.certified < steady.certified < 7.0


@pytest.mark.parametrize("share", [0.003, 0.01, 0.03])
@pytest.mark.parametrize("windows", [5, 20])
def test_failures_that_no_load_changes_are_no_upper_end(share, windows):
    rng = np.random.default_rng([windows, round(1000 * share)])
    rates = np.geomspace(2.8, 3.85, windows)
    windows = [simulated(q, int(rng.binomial(400, share)), 400, i) for i, q in enumerate(rates)]
    capacity = posterior(windows, Prior(math.log(3.5)))
    assert (capacity.open_above, capacity.open_below) == (True, False)
    assert 3 < capacity.certified < 12


def test_a_limit_that_the_load_moves_closes_the_upper_end_beside_one_with_constant_failures():
    steady = [
        with_limit(counts, "ttft", simulated(7.0, 9, 3000).over("tpot"))
        for counts in on_the_curve(7.0, 20.0, np.geomspace(6, 7.2, 8))
    ]
    capacity = posterior(steady, Prior(math.log(7)))
    assert not capacity.open_above and capacity.binding == "tpot"
    assert capacity.qps_per_node == pytest.approx(7.0, rel=0.01)


def test_a_window_aborted_for_its_queue_says_nothing_of_a_limit_that_it_kept():
    good = on_the_curve(7.4, 20.0, np.geomspace(6.4, 7.4, 8))
    queue = simulated(7.6, 280, 300, 9, limit="ttft", aborted=True)
    alone, beside = (posterior(windows, Prior(math.log(7))) for windows in (good, [*good, queue]))
    assert beside.limits["tpot"].qps_per_node == pytest.approx(alone.limits["tpot"].qps_per_node, rel=1e-3)
    assert beside.limits["tpot"].phi == alone.limits["tpot"].phi
    assert beside.limits["ttft"].high < alone.limits["ttft"].high


@pytest.mark.parametrize(("limit", "rate_qps"), [("ttft", 0.1), ("ttft", 0.6), ("tpot", 0.6)])
def test_a_kernel_holds_enough_requests_to_have_a_load(limit, rate_qps):
    kernels = Kernel.all_of(limit, 1.0, rate_qps)
    assert all(kernel.seconds * rate_qps >= LEAST_REQUESTS_FELT for kernel in kernels)
    assert len(set(kernels)) == len(kernels)
    assert Kernel.all_of(limit, 10.0, 500.0)[0] == Kernel.of(limit, 10.0)


@pytest.mark.parametrize("reach", [0, 1, 2])
def test_the_data_tell_how_far_back_load_is_felt(reach):
    kernel = Kernel.of("tpot", E2E_UNKNOWN_S, reach=reach)
    windows = following(kernel, arrivals_var=1.0)
    expected = 7.0 * kernel.seconds
    root = 7.0 * math.exp(population_shift(np.array([30.0]), 1 / expected, 1 / expected)[0])
    capacity = posterior(windows, Prior(math.log(7)))
    assert capacity.qps_per_node == pytest.approx(root, rel=0.015)
    assert capacity.low < root < capacity.high


def test_a_share_that_hardly_follows_the_load_is_said():
    flat = [simulated(q, 6 + i, 100, i) for i, q in enumerate(np.geomspace(3, 9, 12))]
    steep = on_the_curve(7.0, 20.0, np.geomspace(6, 8, 12))
    doubtful, usual = (posterior(windows, Prior(math.log(6))) for windows in (flat, steep))
    assert doubtful.limits["tpot"].slope_unusual and not usual.limits["tpot"].slope_unusual


@pytest.mark.parametrize("drift_sd", [0.01, pytest.param(0.02, marks=pytest.mark.slow)])
def test_a_drift_that_all_requests_share_widens_the_interval_at_any_rate(drift_sd):
    truth, covers = Fluid(5000.0, drift_sd=drift_sd).capacity_qps(), 0
    for seed in range(8):
        fluid = Fluid(5000.0, drift_sd=drift_sd, seed=seed)
        rates = truth * np.exp(0.02 * np.array([-3, -2, 1, 0, -1, 1, 0, -1] * 2))
        windows = [WindowPlan(i, "window", rate, 0.0, 45.0, False, "") for i, rate in enumerate(rates)]
        capacity = posterior([fluid.window(window).counts for window in windows], Prior(math.log(truth)))
        covers += capacity.low <= truth <= capacity.high
    assert covers >= 7
