"""analysis.results.recount: what a run concluded, from its Parquet files again, and under other bounds."""

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from analysis import Run, RunError, load_run, rejudge
from analysis.__main__ import main
from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.results import recount, summary
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from conf import Experiment, load
from loadgen.drive.load_feed import Past
from loadgen.fleet.target import LostActor, Observation
from loadgen.run import lifecycle
from loadgen.run.jobs import Job, RequireRate, SearchCapacity
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.resumption import past
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.golden import GOLDEN, changed, sweep_json
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_fleet import HoldRate, VirtualFleet, site
from tests.support.virtual.virtual_target import VirtualTarget
from tests.support.words.words import TABLES

QUICK = load(["search=quick", "search.budget_s=200", "workload=chat_5600_140_varied"])
RAMPED = load(["search=standard", "search.budget_s=160", "workload=chat_5600_140_varied"])


def measure(folder: RunFolder, experiment: Experiment, **how: Any) -> dict[str, Any]:
    return measured(SearchCapacity(experiment), folder, Start(8.0, 5.2), **how)


def measured(
    job: Job,
    folder: RunFolder,
    start: Start,
    before: Past | None = None,
    fleet: type[VirtualFleet] = VirtualFleet,
) -> dict[str, Any]:
    """The tree of a job that `fleet` loads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "LoadFleet", fleet)
        return to_tree(RunLifecycle(job, folder, site(start), lambda *_, **__: None, before).measure())


def recounted(path: Path) -> str:
    """What a recount says, which found all as it was recorded."""
    lines, identical = recount.recomputed(load_run(path))
    assert identical, lines
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "one")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with a ramp, for reading only."""
    made = RunFolder.create(tmp_path_factory.mktemp("runs"), "one")
    measure(made, RAMPED)
    return made.path


@pytest.mark.slow
def test_a_sweep_is_recomputed_to_the_last_digit_on_the_same_cpu(swept: Path, capsys: Any) -> None:
    recorded = sweep_json(swept)
    low = recorded["capacity"]["qps_per_node"]["low"]
    again = recount.recount(load_run(swept))
    assert again.capacity is not None and again.capacity.low == low
    assert {window.kind for window in again.windows} == {"ramp", "window"}
    assert main(["show", str(swept), "--recompute"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("SAME") and f"low       recorded {low!r}, recomputed {low!r}" in shown


def test_only_derived_figures_have_a_tolerance() -> None:
    assert recount.same(21.060909849023037, 21.06090984902303) and recount.same(0.0, 1e-17)
    assert not recount.same(5.0, 5.0 * (1 + 2e-9)) and not recount.same(0.0, 1e-9)
    assert recount.same(float("inf"), float("inf")) and not recount.same(float("inf"), 5.0)
    assert not recount.same(10**12, 10**12 + 1) and not recount.same([1, 2], [1, 3])


@pytest.mark.parametrize(
    ("group", "end", "times", "message"),
    [
        ("qps_per_node", "low", 1 + 1e-6, "qps_per_node.low recorded"),
        ("constants", "certified", 1.1, "qps_per_node.certified recorded 2.5"),
    ],
)
def test_a_figure_beyond_the_tolerance_is_named(
    tmp_path: Path, group: str, end: str, times: float, message: str
) -> None:
    assert "not drawn again" in recounted(GOLDEN)
    capacity = sweep_json(GOLDEN)["capacity"]
    capacity[group][end] *= times
    lines, agrees = recount.recomputed(load_run(changed(tmp_path / "edited", capacity=capacity)))
    assert not agrees and message in lines


def test_a_run_of_shared_prompts_is_recomputed_in_the_work_of_what_is_left(folder: RunFolder) -> None:
    experiment = load(["rate_qps=3", "fleet.warmup_requests=4", "workload.prefix_hit=.5"])
    (line,) = measured(HoldRate(experiment, 3.0, 30, 5), folder, Start(8.0))["windows"]
    assert line["work_qps_per_node"] == pytest.approx(line["requests"] / 30), "alike requests are mean ones"
    recounted(folder.path)


class Losing(VirtualFleet):
    """A fleet that loses an actor after 100 s, which is replaced."""

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        progress = super().run(schedule, until_ns)
        lost = [LostActor(1, 1, 2, "killed")] if until_ns > 100 * NS else []
        return Observation(progress.ended, progress.pending, [], lost)

    def heal(self) -> bool:
        return True


@pytest.mark.slow
def test_void_windows_stay_void_in_the_recount(folder: RunFolder) -> None:
    tree = measure(folder, QUICK, fleet=Losing)
    void = [line["index"] for line in tree["windows"] if line["void_reason"] == "actor_lost"]
    assert void and not set(void) & set(tree["capacity"]["windows_used"])
    recounted(folder.path)


class Interrupted(VirtualFleet):
    """Ctrl-C comes after 150 s."""

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        if until_ns > 150 * NS:
            raise KeyboardInterrupt
        return super().run(schedule, until_ns)


class Later(VirtualFleet):
    """Starts where the session before ended."""

    def __init__(self, *words: Any, from_ns: int, **more: Any) -> None:
        super().__init__(*words, **more)
        self._now_ns = from_ns


@pytest.mark.slow
def test_a_resumed_sweep_is_recomputed_too(folder: RunFolder) -> None:
    assert measure(folder, QUICK, fleet=Interrupted)["exit_code"] == 130
    assert "none was recorded" in recounted(folder.path)
    before = past(load_run(folder.path))
    tree = measure(RunFolder(folder.path), QUICK, before=before, fleet=Later)
    assert before.windows and tree["capacity"]
    assert "capacity, limits and windows used, within 1e-09: identical" in recounted(folder.path)


@pytest.mark.slow
def test_a_queue_that_still_grew_is_recomputed(folder: RunFolder) -> None:
    class Queue(VirtualFleet):
        """A service of ten requests a second, one at a time."""

        def __init__(self, *_: Any, **__: Any) -> None:
            VirtualTarget.__init__(self, OneAtATime(0.1))

    words = ["workload=smoke", "workload.output_tokens.mean=20", "slo.tpot_p90_ms=1000"]
    words += ["slo.ttft_p90_ms=20000", "search=quick", "search.budget_s=120", "fleet.warmup_requests=4"]
    experiment = load([*words, "seed=2"])
    tree = measured(SearchCapacity(experiment), folder, Start(10.0, 11.0), fleet=Queue)
    assert (tree["exit_code"], tree["capacity"]["queue_grew"]) == (summary.EXIT_OPEN, True)
    recounted(folder.path)


@pytest.mark.slow
def test_what_a_required_rate_rests_on_is_recomputed(folder: RunFolder) -> None:
    experiment = load(["rate_qps=6", "fleet.warmup_requests=4"])
    tree = measured(RequireRate(experiment), folder, Start(8.0))
    assert tree["exit_code"] == summary.EXIT_SLO_MISSED
    assert repr(tree["probe"]["required"]["capacity"]["qps_per_node"]["high"]) in recounted(folder.path)


def test_a_figure_that_does_not_follow_from_the_rows_is_named(tmp_path: Path, capsys: Any) -> None:
    path = changed(tmp_path / "changed")
    rows = records.read(path / "requests")
    last = load_run(path).windows().to_pylist()[-1]
    # Without its record an answer is lost, and its request late.
    gone = in_window(rows, window_table.window(last))["seq"][0]
    records.write(rows.filter(pc.not_equal(rows["seq"], gone)), path / "requests" / "part-000.parquet")
    assert main(["show", str(path), "--recompute"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("DIFFERENT")
    assert f"window {last['index']}: completed recorded {last['completed']}, recomputed" in shown


def test_bounds_that_are_not_whole_are_none(tmp_path: Path) -> None:
    path = changed(tmp_path / "broken")
    window_table.write([], {"ttft_p90_ms": 1}, path / "windows.parquet")
    assert window_table.basis_of(load_run(path).windows()) is None


@pytest.mark.slow
def test_the_table_holds_what_an_analyst_asks(swept: Path) -> None:
    ended = load_run(swept)
    table, capacity = ended.windows(), sweep_json(ended.path)["capacity"]
    assert table.schema.field("goodput_qps_per_node").metadata[b"unit"] == b"requests/s"
    line = table.to_pylist()[capacity["windows_used"][-1]]
    rows = in_window(ended.requests(), window_table.window(line))
    ttft, tpot = metrics.ttft(rows), metrics.tpot(rows)
    good = ((ttft <= RAMPED.slo.ttft_p90_ms) & (tpot <= RAMPED.slo.tpot_p90_ms)).sum()
    seconds = (line["window_end_ns"] - line["window_start_ns"]) / NS
    assert line["goodput_qps_per_node"] == pytest.approx(good / seconds)
    assert line["tpot_p99_ms"] == quantile(tpot, 0.99) and line["ttft_p50_ms"] == quantile(ttft, 0.5)
    assert line["tpot_phi"] == capacity["limits"]["tpot"]["phi"]
    unused = [row for row in table.to_pylist() if row["index"] not in capacity["windows_used"]]
    assert unused and {row["tpot_phi"] for row in unused} == {None}


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(GOLDEN)


def test_by_its_own_bounds_a_search_has_its_own_answer(run: Run) -> None:
    assert run.verdict and run.verdict.capacity
    recorded = run.verdict.capacity.sampling
    again = rejudge(run, "slo.tpot_p90_ms=100").capacity
    assert again and again.binding == run.verdict.capacity.binding
    # The prior alone is wider.
    assert again.qps_per_node.value == pytest.approx(recorded.value, rel=0.005)
    assert again.qps_per_node.certified == pytest.approx(recorded.certified, rel=0.02)


def test_a_stricter_bound_lowers_the_capacity_and_may_bind_instead(run: Run) -> None:
    verdict = [rejudge(run, word).capacity for word in ("slo.tpot_p90_ms=100", "slo.tpot_p90_ms=80")]
    assert verdict[0] and verdict[1] and verdict[1].qps_per_node.value < verdict[0].qps_per_node.value
    ttft = rejudge(run, "slo.ttft_p90_ms=900")
    assert ttft.capacity and ttft.capacity.binding == "ttft" and ttft.experiment.slo.bound_ms("ttft") == 900
    assert ttft.reason.startswith("judged by p90 TTFT <= 900 ms, p90 TPOT <= 100 ms with the windows")
    assert ttft.capacity.constants is None, "they were drawn for other bounds"


def test_another_kind_of_bound_is_counted_from_the_rows(run: Run) -> None:
    capacity = rejudge(run, "slo.e2e_p90_ms=15000", "slo.ttft_p90_ms=null").capacity
    assert capacity and set(capacity.limits or ()) == {"tpot", "e2e_p90"}


def test_the_lag_that_a_window_may_have_follows_the_bound(run: Run) -> None:
    bounds = {check.name: check.bound for check in rejudge(run, "slo.ttft_p90_ms=900").checks or ()}
    assert bounds["send_lag_p99"] == 9 and bounds["actor_cpu"] == 0.6


@pytest.mark.parametrize(("word", "message"), TABLES["bounds of a run"])
def test_what_was_not_offered_or_not_recorded_is_refused_in_one_line(
    run: Run, word: str, message: str
) -> None:
    with pytest.raises(RunError) as refused:
        rejudge(run, word)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_run_that_claims_nothing_claims_nothing_by_other_bounds(tmp_path: Path) -> None:
    void = load_run(changed(tmp_path / "void", valid=False, exit_code=4, reason="client_limited"))
    with pytest.raises(RunError, match="is void .client_limited.: no bound makes it valid"):
        rejudge(void, "slo.tpot_p90_ms=80")
    probe = load_run(changed(tmp_path / "probe", capacity=None))
    with pytest.raises(RunError, match="searched for no capacity"):
        rejudge(probe, "slo.tpot_p90_ms=80")
    (tmp_path / "void" / "sweep.json").unlink()
    with pytest.raises(RunError, match="did not end: python -m loadgen resume"):
        rejudge(load_run(tmp_path / "void"), "slo.tpot_p90_ms=80")


def test_the_command_prints_the_verdict_by_the_other_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(GOLDEN), "slo.tpot_p90_ms=80"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "capacity 3.12, sampling noise alone" in first and "p90 TPOT <= 80 ms with the windows" in second
    assert main(["show", str(GOLDEN), "seed=3"]) == 2
    assert capsys.readouterr().err.startswith("error: 'seed=3' is no bound")
    for more in ("slo.tpot_p90_ms=80", "--json"):
        assert main(["show", str(GOLDEN), more, "--recompute"]) == 2
        assert "by its own bounds, as text: leave " in capsys.readouterr().err


def test_the_screen_has_the_whole_verdict_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(GOLDEN), "--json"]) == 0
    assert from_tree(RunVerdict, json.loads(capsys.readouterr().out), "the line") == run.verdict
    assert main(["show", str(GOLDEN), "slo.tpot_p90_ms=80", "--json"]) == 0
    again = from_tree(RunVerdict, json.loads(capsys.readouterr().out), "the line")
    assert again.experiment.slo.tpot_p90_ms == 80 and again == rejudge(run, "slo.tpot_p90_ms=80")
