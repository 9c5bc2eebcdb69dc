"""loadgen/studies/comparison.py: pairs of windows on the same requests, their ratio, the study."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.capacity import paired_ratio
from analysis.capacity.paired_ratio import Latencies, Pair
from analysis.capacity.window_counts import LimitCount, WindowCounts
from analysis.results import studies, summary
from analysis.results.json_border import from_tree, to_tree
from analysis.results.runs import load_run
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import Floats
from conf import ConfigError, Experiment, load
from conf.compose import dump
from loadgen.cli import measuring, two_sides
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan, Past
from loadgen.run.jobs import Job
from loadgen.run.run_folder import Folder, RunFolder
from loadgen.search.policy import MOST_CLEAN_STEP
from loadgen.search.replay_policy import RATIO_UP, next_pair, without_evidence
from loadgen.search.window_plan import MeasuredWindow, Start, Stop, WindowPlan
from loadgen.studies import comparison, study
from loadgen.studies.comparison import PairedReplays
from loadgen.traffic.schedule import NS, PHASES
from tests.support.runs.verdict_trees import screen
from tests.support.runs.verdict_trees import screen_of_folder as concluded
from tests.support.virtual.virtual_drivers import engines, plan, silent
from tests.support.virtual.virtual_target import Faster, VirtualTarget

REQUESTS = 250


def beside(ttft_ms: Floats, tpot_ms: Floats) -> Latencies:
    """Latencies over their bounds, 2000 and 100 ms."""
    return {"ttft": ttft_ms / 2000, "tpot": tpot_ms / 100}


def pairs(delta: float, tried: list[float], seed: int, noise: float = 0.01) -> list[Pair]:
    """Pairs of services whose TPOT grows with the rate; B's grows `delta` (ln) later."""
    rng = np.random.default_rng(seed)
    made = []
    for index, log_ratio in enumerate(tried):
        luck = rng.normal(math.log(70), 0.2) + rng.normal(0, 0.1, REQUESTS)
        # d ln(TPOT) / d ln(rate) = 3.5 with this spread makes the slope of the logit some 18.
        shift = 3.5 * (log_ratio - delta) + rng.normal(0, noise, REQUESTS)
        quick = np.full(REQUESTS, 300.0)
        a, b = beside(quick, np.exp(luck)), beside(quick, np.exp(luck + shift))
        made.append(paired_ratio.pair(index, log_ratio, True, a, b))
    return made


@pytest.mark.parametrize("delta", [-0.15, 0.0, 0.03])
def test_the_interval_holds_the_true_ratio_and_is_narrow(delta: float) -> None:
    tried = [delta + apart for apart in (0.05, -0.03, 0.01, 0, 0, 0, 0, 0)]
    ratio = [paired_ratio.ratio(pairs(delta, tried, seed), delta + 0.06) for seed in range(20)]
    known = [one for one in ratio if one]
    errors = [math.log(one.estimate.value) - delta for one in known]
    assert len(known) == 20 and np.std(errors) < 0.012 and abs(np.mean(errors)) < 0.005
    assert sum(math.log(one.estimate.low) <= delta <= math.log(one.estimate.high) for one in known) >= 19
    assert all(one.limits.keys() == {"tpot"} and not one.unlike for one in known)


def gap_pairs(delta: float, tried: list[float], seed: int, slope: float) -> list[Pair]:
    """Pairs of services of whose pooled gaps a share is over the bound, a tenth where the bound is just kept.

    A window's luck moves both shares alike; how many gaps a request has over it varies far more than chance.
    """
    rng = np.random.default_rng(seed)
    made = []
    for index, log_ratio in enumerate(tried):
        luck, gaps = rng.normal(0, 0.3), rng.integers(20, 200, REQUESTS).astype(float)
        sides = []
        for shift in (0.0, slope * (log_ratio - delta)):
            share = 1 / (1 + np.exp(math.log(9) - luck - shift + rng.normal(0, 0.02)))
            over = rng.binomial(gaps.astype(int), rng.beta(8 * share, 8 * (1 - share), REQUESTS))
            sides.append(np.column_stack([over, gaps]))
        made.append(paired_ratio.pair(index, log_ratio, True, *({"itl_pooled_p90": side} for side in sides)))
    return made


@pytest.mark.parametrize(("delta", "slope"), [(-0.1, 4.0), (0.06, 10.0)])
def test_the_ratio_of_pooled_gaps_is_known_with_the_request_as_the_unit(delta: float, slope: float) -> None:
    tried = [delta + apart for apart in (0.05, -0.04, 0.02, -0.01, 0, 0, 0, 0, 0, 0)]
    ratios = [paired_ratio.ratio(gap_pairs(delta, tried, seed, slope), delta + 0.03) for seed in range(40)]
    known = [one for one in ratios if one]
    assert len(known) == 40 and not any(one.open for one in known)
    assert abs(np.mean([math.log(one.estimate.value) - delta for one in known])) < 0.01
    assert sum(math.log(one.estimate.low) <= delta <= math.log(one.estimate.high) for one in known) >= 36


def test_parts_of_requests_are_shares_of_what_both_sides_know() -> None:
    a = np.column_stack([[1.0, 8.0, 0.0, 5.0], [10.0, 80.0, 10.0, 0.0]])
    b = np.column_stack([[3.0, 0.0, 10.0, 9.0], [10.0, 20.0, 0.0, 9.0]])
    made = paired_ratio.pair(0, 0.0, True, {"itl_pooled_p99": a}, {"itl_pooled_p99": b})
    shares = made.limits["itl_pooled_p99"]
    assert (shares.determined, shares.of_gaps) == (2, True)
    assert shares.over == shares.near == pytest.approx((2 * 9 / 90, 2 * 3 / 30))


def test_bounds_weigh_alike_whatever_share_they_allow() -> None:
    """Both bounds are just kept by B at A's rate: neither is drowned by the other's larger allowance."""
    rng = np.random.default_rng(1)
    made = []
    for index in range(8):
        wide, narrow = (
            np.column_stack([(rng.random(REQUESTS) < share).astype(int), np.ones(REQUESTS)])
            for share in (0.1, 0.02)
        )
        sides = {"itl_p90": wide, "itl_p98": narrow}
        made.append(paired_ratio.pair(index, 0.0, True, sides, sides))
    ratio = paired_ratio.ratio(made, 0.0)
    assert ratio and list(ratio.limits) == ["itl_p90", "itl_p98"]
    assert [limit.weight for limit in ratio.limits.values()] == pytest.approx([0.5, 0.5], abs=0.1)


def walked(delta: float, count: int, seed: int) -> list[Pair]:
    """Pairs of a search for a ratio that begins at 1, as far as single steps up may go."""
    tried = [0.0]
    while len(tried) < count:
        ratio = paired_ratio.ratio(pairs(delta, tried, seed), 0.0)
        tried.append(min(ratio.log_next, tried[-1] + MOST_CLEAN_STEP) if ratio else tried[-1] + RATIO_UP)
    return pairs(delta, tried, seed)


@pytest.mark.parametrize("truth", [2.0, 1 / 1.5])
@pytest.mark.parametrize(("count", "error"), [(10, 0.08), (14, 0.03)])
def test_a_ratio_far_from_one_is_found_from_a_common_guess(truth: float, count: int, error: float) -> None:
    ratios = [paired_ratio.ratio(walked(math.log(truth), count, seed), 0.0) for seed in range(4)]
    known = [one for one in ratios if one and not one.open]
    assert len(known) == 4 and all(abs(math.log(one.estimate.value / truth)) < error for one in known)
    assert sum(one.estimate.low <= truth <= one.estimate.high for one in known) >= 3


@pytest.mark.parametrize(("delta", "open_end"), [(math.log(2), "above"), (-math.log(2), "below")])
def test_pairs_on_one_side_of_the_answer_are_a_bound(delta: float, open_end: str) -> None:
    ratio = paired_ratio.ratio(pairs(delta, [0.0, 0.01, 0.02, -0.01, 0.0], 1), 0.0)
    assert ratio is not None and ratio.open == open_end
    assert ratio.estimate.low < 2 if open_end == "above" else ratio.estimate.high > 0.5
    assert PairedReplays(5, ratio).lack.startswith(
        f"5 whole pairs say no more than that B / A is {open_end} "
    )


def test_quiet_pairs_do_not_draw_the_answer_to_where_they_were_tried() -> None:
    easy = beside(np.full(REQUESTS, 300.0), np.full(REQUESTS, 40.0))
    quiet = [paired_ratio.pair(index, 0.0, True, easy, easy) for index in range(20)]
    some = pairs(0.15, [0.1, 0.14, 0.16], 1)
    alone, more = paired_ratio.ratio(some, 0.0), paired_ratio.ratio([*some, *quiet], 0.0)
    assert alone and more and more.estimate == alone.estimate
    assert paired_ratio.ratio(quiet, 0.0) is None


def test_the_verdict_is_what_the_interval_shows() -> None:
    verdicts = []
    for delta in (0.1, -0.1, 0.0):
        ratio = paired_ratio.ratio(pairs(delta, [delta] * 10, 1), delta)
        verdicts.append(ratio.verdict)
    assert verdicts == ["B is better", "B is worse", "no difference shown"]


def disturbed(seed: int) -> list[Pair]:
    """Pairs of identical services, each of which a neighbour slows by 20 % in a third of the windows."""
    rng, plain = np.random.default_rng(seed), pairs(0.0, [0.0] * 7, seed)
    made = []
    for one in plain:
        luck = np.exp(rng.normal(math.log(0.85), 0.2) + rng.normal(0, 0.1, REQUESTS))
        a, b = (luck * np.exp(0.4 * (rng.random() < 1 / 3) * (np.arange(REQUESTS) > 80)) for _ in "ab")
        made.append(paired_ratio.pair(one.index, 0.0, True, {"tpot": a}, {"tpot": b}))
    return made


def test_neighbours_that_the_sides_do_not_share_are_no_difference() -> None:
    ratios = [paired_ratio.ratio(disturbed(seed), 0.0) for seed in range(60)]
    wrong = sum(one.verdict != "no difference shown" for one in ratios if one and not one.open)
    assert None not in ratios and wrong <= 4


def test_two_sides_exchanged_give_the_inverse_ratio() -> None:
    ours = pairs(0.05, [0.04, 0.06, 0.05, 0.05], 3)
    theirs = []
    for our in ours:
        tpot = our.limits["tpot"]
        stretches = tuple((-apart, requests) for apart, requests in tpot.stretches)
        turned = paired_ratio.Shares(tpot.determined, tpot.over[::-1], tpot.near[::-1], stretches)
        theirs.append(Pair(our.index, -our.log_ratio, True, {**our.limits, "tpot": turned}))
    there, back = paired_ratio.ratio(ours, 0.0), paired_ratio.ratio(theirs, 0.0)
    assert there and back and there.estimate.value == pytest.approx(1 / back.estimate.value, rel=1e-3)
    assert (there.estimate.low, there.estimate.high) == pytest.approx(
        (1 / back.estimate.high, 1 / back.estimate.low), rel=1e-3
    )


def test_other_binding_limits_are_said_and_the_capacities_decide() -> None:
    fast, slow = np.full(REQUESTS, 300.0), np.full(REQUESTS, 300.0)
    slow[:30] = 2500.0
    a = beside(fast, np.where(np.arange(REQUESTS) < 30, 130.0, 60.0))
    b = beside(slow, np.full(REQUESTS, 60.0))
    result = paired_ratio.ratio([paired_ratio.pair(n, 0.0, True, a, b) for n in range(5)], 0.0)
    assert result is not None and result.unlike
    result = paired_ratio.unpaired(Estimate(5.0, 4.8, 5.2), Estimate(6.0, 5.8, 6.2))
    value, low, high = result.value, result.low, result.high
    assert value == pytest.approx(1.2) and low < 1.2 / 1.04 < 1.2 * 1.04 < high


def test_a_pair_counts_what_both_sides_had_and_knew() -> None:
    a = beside(np.array([100.0, 3000.0, 100.0]), np.array([50.0, np.nan, 120.0]))
    b = beside(np.array([100.0, np.inf]), np.array([110.0, 50.0]))
    made = paired_ratio.pair(7, 0.0, False, a, b)
    assert (made.limits["ttft"].determined, made.limits["ttft"].over) == (2, (1, 1))
    assert (made.limits["tpot"].determined, made.limits["tpot"].over) == (1, (0, 1))
    assert made.limits["ttft"].near[1] == pytest.approx(1.0) and 0.5 < made.limits["tpot"].near[1] < 1.0


SPEC = load(["search=standard"]).search
TEMPLATES = [
    WindowPlan(index, "window", 5.0 + 0.01 * index, 15.0 if index == 4 else 0.0, 45.0, False, "")
    for index in (4, 5, 7)
]


def outcome(index: int, pair: int, rate_qps: float, **state: bool) -> MeasuredWindow:
    plan = WindowPlan(index, "window", rate_qps, 15, 45, False, "", pair)
    counts = LimitCount(20, 200, (20,), (200,))
    window = WindowCounts(
        index,
        "window",
        rate_qps,
        1,
        0,
        0,
        45 * NS,
        45 * NS,
        aborted=state.pop("aborted", False),
        limits={"ttft": counts, "tpot": counts},
        median_e2e_s=6.0,
    )
    return MeasuredWindow(plan, window, **state)


def test_b_replays_a_window_by_window_in_scaled_time() -> None:
    first = next_pair(SPEC, TEMPLATES, [], math.log(1.25), 100.0)
    assert isinstance(first, WindowPlan) and first.pair == 4
    assert first.rate_qps == pytest.approx(1.25 * TEMPLATES[0].rate_qps)
    assert first.window_s == pytest.approx(45 / 1.25)
    # A's own 15 s of transition, scaled, after as many seconds more as a first window needs.
    assert first.transition_s - first.lead_s == pytest.approx(15 / 1.25)
    assert first.transition_s == pytest.approx(SPEC.first_transition_s)
    went_on = next_pair(SPEC, TEMPLATES, [outcome(0, 4, 5.04)], 0.0, 100.0)
    assert isinstance(went_on, WindowPlan) and (went_on.pair, went_on.transition_s) == (5, 0.0)
    # A had another window before its 7: what B did before is not what A did.
    apart = next_pair(SPEC, TEMPLATES, [outcome(0, 4, 5.04), outcome(1, 5, 5.05)], 0.0, 100.0)
    assert isinstance(apart, WindowPlan) and apart.pair == 7 and apart.lead_s == SPEC.transition_s


@pytest.mark.parametrize(
    ("rates", "states", "elapsed_s", "then"),
    [
        ((5.04, 5.05, 5.07), ({}, {}, {}), 300.0, None),
        ((5.04, 5.05, 5.07), ({}, {"aborted": True}, {}), 300.0, 5),
        ((5.04, 5.05, 5.07), ({"void": True}, {}, {}), 300.0, 4),
        ((4.50, 5.05, 5.07), ({}, {}, {}), 300.0, 4),  # far from the answer
        ((4.50, 5.05, 5.07), ({}, {}, {}), 880.0, None),  # the budget is spent
    ],
)
def test_what_was_void_cut_or_far_is_tried_once_more(
    rates: tuple[float, ...], states: tuple[dict[str, bool], ...], elapsed_s: float, then: int | None
) -> None:
    done = [
        outcome(n, t.index, r, **s) for n, (t, r, s) in enumerate(zip(TEMPLATES, rates, states, strict=True))
    ]
    step = next_pair(SPEC, TEMPLATES, done, 0.0, elapsed_s)
    assert (step.pair if isinstance(step, WindowPlan) else None) == then
    if then is not None:
        twice = [*done, outcome(3, then, 4.0, aborted=True)]
        assert isinstance(next_pair(SPEC, TEMPLATES, twice, 0.0, elapsed_s), Stop)


def shares(a: float, b: float) -> paired_ratio.Shares:
    """A pair of 200 requests of which so many are over, even in time."""
    return paired_ratio.Shares(200, (a, b), (a, b), (((b - a) / 8, 25),) * 8)


def test_gaps_that_b_breaks_by_far_are_an_upper_end_whatever_the_other_limits_say() -> None:
    """A is limited by its gaps, and B breaks them wherever it was tried; TTFT alone would say B is better."""
    ttft, gaps = shares(12.0, 8.0), replace(shares(3.0, 150.0), of_gaps=True)
    pairs = [Pair(n, 0.02 * n, True, {"ttft": ttft, "itl_p99": gaps}) for n in range(1, 5)]
    ratio = paired_ratio.ratio(pairs, 0.0)
    assert ratio and (ratio.open, ratio.estimate.high) == ("below", pytest.approx(math.exp(0.02)))
    assert ratio.estimate.low <= ratio.estimate.value <= ratio.estimate.high
    calm = [replace(pair, limits={"ttft": ttft, "itl_p99": replace(ttft, of_gaps=True)}) for pair in pairs]
    whole = paired_ratio.ratio(calm, 0.0)
    assert whole and not whole.open and whole.estimate.high > ratio.estimate.high


def test_a_joint_bound_compares_in_place_of_those_it_implies() -> None:
    joint, faster = shares(22.0, 20.0), shares(12.0, 2.0)
    pairs = [Pair(n, 0.01 * n, True, {"ttft": faster, "joint_p90": joint}) for n in range(4)]
    alone = [replace(pair, limits={"joint_p90": joint}) for pair in pairs]
    assert (a := paired_ratio.ratio(pairs, 0.0)) and (b := paired_ratio.ratio(alone, 0.0))
    assert a.estimate == b.estimate and "ttft" not in a.limits


def test_without_evidence_the_ratio_falls_after_an_overload_and_climbs_else() -> None:
    assert without_evidence([], [], 0.2) == 0.2
    assert without_evidence([outcome(0, 4, 5.0)], [0.2], 0.2) > 0.2
    assert without_evidence([outcome(0, 4, 5.0, aborted=True)], [0.2], 0.2) < 0.2
    mostly_over = {"itl_p99": LimitCount(140, 200, (140,), (200,))}
    window = replace(outcome(0, 4, 5.0).counts, limits=mostly_over)
    assert without_evidence([replace(outcome(0, 4, 5.0), counts=window)], [0.2], 0.2) < 0.2


def driver(experiment: Experiment, factor: float = 1.0, *tellers: Any, **more: Any) -> Driver:
    service: Any = Faster(engines(experiment, experiment.seed), factor)
    planned = plan(experiment, Start(8.0))
    return Driver(VirtualTarget(service), planned, *(tellers or (silent,)), **more)


VARIED = ["workload=chat_5600_140_varied", "engine.step_noise_cv=0.04", "search=standard"]


def test_a_replayed_window_has_the_same_requests_at_another_rate() -> None:
    drive = driver(load(VARIED))
    drawn = []
    for rate_qps, lead_s, index, pair in ((5.0, 0.0, 6, None), (6.5, 8.0, 9, 6)):
        slower = 5.0 / rate_qps
        plan = WindowPlan(
            index, "window", rate_qps, lead_s + 15 * slower, 45 * slower, False, "", pair, lead_s
        )
        window = drive.feed.window(plan)
        schedule = drive.feed.draw(plan, window, window.rate_qps)
        assert set(schedule.window_index * np.ones(1)) == {index} and (np.diff(schedule.due_ns) >= 0).all()
        assert schedule.seq.tolist() == list(range(len(schedule)))
        inside = schedule.where(schedule.phase == PHASES.index("window"))
        drawn.append((inside, (inside.due_ns - window.window_start_ns) * rate_qps))
    (a, unit_a), (b, unit_b) = drawn
    assert len(a) == len(b) > 150
    assert a.input_tokens.tolist() == b.input_tokens.tolist() != sorted(a.input_tokens.tolist())
    assert a.output_tokens.tolist() == b.output_tokens.tolist()
    assert np.abs(unit_a - unit_b).max() < 100  # ns at unit rate: rounding


def asked(words: list[str], out: Path) -> tuple[Experiment, Experiment]:
    shared = [*words, f"out={out}", "run=one", "a.engine.max_num_seqs=1023", "b.engine.max_num_seqs=1024"]
    return two_sides.compared(shared, None)


class Site:
    """Fills run folders from virtual services; B's is `factor` times as fast."""

    def __init__(self, factor: float) -> None:
        self.plans: list[LoadPlan] = []
        self._factor = factor

    def __call__(self, job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        experiment = job.experiment
        folder.write_text("config.yaml", dump(experiment))
        folder.write_json("manifest.json", {"verb": "sweep"})
        factor = self._factor if folder.run_id == "b" else 1.0
        drive = driver(experiment, factor, folder.event, folder.plan, reported=folder.tell)
        job.load(drive)
        self.plans.append(drive.plan)
        drive.recount_on(folder.collect())
        verdict = job.verdict(drive)
        folder.write_json("sweep.json", to_tree(verdict))
        folder.close()
        return verdict


@pytest.mark.slow
def test_a_study_shows_which_side_is_better_and_too_few_pairs_show_nothing(tmp_path: Path) -> None:
    a, b = asked([*VARIED, "search.budget_s=500", "seed=2"], tmp_path)
    site = Site(1.08)
    folder = Folder.create(Path(a.out), a.run)
    tree = to_tree(study.run(comparison.Comparison(a, b), folder, site, silent))
    ratio = tree["ratio"]
    # A service faster in everything by 8 % gains a little more where a bound is in seconds.
    assert (tree["exit_code"], tree["valid"]) == (0, True)
    # One search in twenty does not hold the true ratio of 1.109; none is far from it.
    estimate = ratio["estimate"]
    assert 1 < estimate["low"] < estimate["value"] < estimate["high"] < 1.25
    assert estimate["value"] == pytest.approx(1.109, rel=0.04)
    assert ratio["pairs"] >= 6 and ratio["correlation"] > 0.3
    # Common are the arrivals; the engines' own noise is not.
    assert {plan.seed for plan in site.plans} == {a.seed}
    assert load(base=tmp_path / "one" / "b" / "config.yaml").seed != a.seed
    text = concluded(tmp_path / "one")
    assert text.startswith(f"VALID  B / A = {estimate['value']:.2f} [")
    assert "(95 %): B is better" in text and "engine.max_num_seqs 1023 -> 1024" in text
    assert "B got A's arrivals and lengths" in text and "\n    b " in text
    again = comparison.Comparison(a, b)
    again.path = tmp_path / "one"
    ended = replace(from_tree(StudyVerdict, tree, "a test"), ratio=None)

    def compared() -> StudyVerdict:
        done = {name: load_run(tmp_path / "one" / name).verdict for name in "ab"}
        return again.conclude(ended, {name: one for name, one in done.items() if one})

    assert to_tree(compared())["ratio"] == ratio
    of_b = tmp_path / "one" / "b" / "sweep.json"
    stored = json.loads(of_b.read_text())
    for line in stored["windows"][:-2]:
        line["valid"] = False
    of_b.write_text(json.dumps(stored))
    few = compared()
    assert (few.exit_code, few.passed) == (summary.EXIT_OPEN, False)
    assert "2 whole pairs of windows are too few: 3 are needed" in few.reason
    assert screen(few).startswith("VALID  no ratio was shown")


def test_one_side_alone_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / studies.OTHER).write_text("")
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="one side of a comparison: python -m loadgen resume"):
        measuring.resume(tmp_path / "b", None, silent)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one side of a comparison: python -m loadgen resume"):
        measuring.left(tmp_path / "b")
    (tmp_path / "b" / "manifest.json").write_text('{"verb": "sweep"}')
    (tmp_path / "b" / "events.jsonl").touch()
    assert concluded(tmp_path / "b").endswith(f"to go on: python -m loadgen resume {tmp_path}")


def test_words_for_one_side_win_over_words_for_both() -> None:
    words = ["search=standard", "layout=dp1_tp8_ep8", "b.layout=dp2_tp4_ep4", "seed=9"]
    a, b = two_sides.compared(words, None)
    assert (a.layout.name, b.layout.name, a.seed, b.seed) == ("dp1_tp8_ep8", "dp2_tp4_ep4", 9, 9)
    assert two_sides.differences(a, b)["layout.tensor_parallel"] == [8, 4]


def test_saved_configurations_are_compared_under_a_new_name(tmp_path: Path) -> None:
    files = []
    for name, layout in (("A", "dp1_tp8_ep8"), ("B", "dp2_tp4_ep4")):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(dump(load([f"layout={layout}", f"run={name}", "search=standard"])))
    a, b = two_sides.compared([*map(str, files), "search.budget_s=600"], None)
    assert (a.layout.name, b.layout.name) == ("dp1_tp8_ep8", "dp2_tp4_ep4")
    assert (a.run, b.run, a.search.budget_s, b.search.budget_s) == (None, None, 600.0, 600.0)
