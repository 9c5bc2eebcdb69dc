"""loadgen/studies/study.py and calibration_probes.py: several runs as one answer; parts without a result."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from analysis.results import studies, summary
from analysis.results.experiment_facts import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.runs import RunError
from analysis.results.verdicts import PlacingPrediction, RunVerdict, StudyVerdict
from conf import ConfigError, Experiment, load
from conf.compose import dump
from loadgen.cli import engine_model, measuring
from loadgen.drive.load_feed import Past
from loadgen.run.jobs import Job, OfferLoad
from loadgen.run.run_folder import Folder, RunFolder
from loadgen.search import pacing
from loadgen.search.window_plan import Start
from loadgen.studies import calibration_probes, study
from tests.support.runs.verdict_trees import screen_of_folder as concluded
from tests.support.runs.verdict_trees import text_of
from tests.support.virtual.virtual_drivers import Killed, silent

FINDS = (5.0, 5.2, 5.1, 5.3)
UNKNOWN = {"ms": None, "bound_ms": 2000.0, "passed": None}
VETO = {
    "rate_qps_per_node": 5.0,
    "window_s": 150.0,
    "requests": 750,
    "valid": True,
    "void_reason": "",
    "capacity_high_qps_per_node": 4.8,
    "vetoed": True,
    "limits": {"ttft": UNKNOWN, "tpot": UNKNOWN},
}


def found(qps: float) -> dict[str, Any]:
    figures = {"value": qps, "low": 0.97 * qps, "high": 1.03 * qps, "certified": 0.975 * qps}
    return {"qps_per_node": figures, "binding": "tpot", "binding_probability": 0.9}


class Site:
    """Fills run folders at once, one figure after the other; `ends` says which part ends otherwise.

    `more` is what the conclusion of such a part holds besides.
    """

    verb = "sweep"

    def __init__(self, ends: dict[str, int] | None = None, **more: Any) -> None:
        self.asked: list[Experiment] = []
        self.befores: list[Past | None] = []
        self.ends, self._more = ends or {}, more

    def __call__(self, job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        experiment = job.experiment
        folder.write_text("config.yaml", dump(experiment))
        folder.write_json("manifest.json", {"verb": self.verb})
        if folder.run_id in self.ends and self.ends[folder.run_id] < 0:
            folder.close()
            raise KeyboardInterrupt
        self.asked.append(experiment)
        self.befores.append(before)
        code = self.ends.get(folder.run_id, 0)
        tree = {
            "verb": self.verb,
            "folder": str(folder.path),
            "experiment": to_tree(describe(experiment)),
            "requests": {"planned": 9, "rows": 9, "by_status": {"ok": 9}},
            "valid": code == 0,
            "exit_code": code,
            "reason": "client_limited: more actors" if code else "",
            "evidence": "some",
        }
        if self.verb == "sweep":
            tree |= self._more if code else {"capacity": found(FINDS[len(self.asked) - 1])}
        folder.write_json("sweep.json", tree)
        folder.close()
        return from_tree(RunVerdict, tree, folder.path)


def asked(out: Path, *words: str) -> Experiment:
    return load(["search=standard", f"out={out}", "run=one", *words])


def ran(experiment: Experiment, site: Any, made: Callable[..., study.Study] = study.several_sweeps) -> Any:
    """The tree of a new study of this experiment."""
    folder = Folder.create(Path(experiment.out), experiment.run)
    return to_tree(study.run(made(experiment), folder, site, silent))


def resumed(path: Path, site: Any, made: Callable[..., study.Study] = study.several_sweeps) -> Any:
    """The tree of a study that goes on in its folder."""
    return to_tree(study.run(made(measuring.saved_experiment(path)), Folder(path), site, silent))


def test_deployments_share_the_budget_with_seeds_of_their_own_and_are_pooled(tmp_path: Path) -> None:
    site = Site()
    tree = ran(asked(tmp_path, "search.deployments=3", "search.budget_s=1200", "seed=7"), site)
    assert [one.search.budget_s for one in site.asked] == [400.0] * 3
    assert [one.search.parts for one in site.asked] == [1] * 3
    assert [one.seed for one in site.asked][0] == 7 and len({one.seed for one in site.asked}) == 3
    first, *later = site.asked
    assert (first.search.start, first.search.expected_qps) == ("ramp", None)
    assert {(one.search.start, one.search.expected_qps) for one in later} == {("prediction", 5.0)}
    q = tree["capacity"]["qps_per_node"]
    assert (tree["exit_code"], tree["valid"], tree["state"]) == (0, True, "ended")
    assert 4.85 < q["low"] < q["certified"] < q["value"] < q["high"] < 5.35
    assert tree["between"]["sd_pct"]["high"] > tree["between"]["sd_pct"]["low"] >= 0
    assert tree["requests"] == {"planned": 27, "rows": 27, "by_status": {"ok": 27}, "by_failure": {}}
    on_disk = json.loads((tmp_path / "one" / "study.json").read_text())
    assert on_disk["capacity"] == tree["capacity"]
    assert {path.name for path in (tmp_path / "one").iterdir()} == {
        "config.yaml", "study.json", "sums.json", "events.jsonl",
        "deployment-1", "deployment-2", "deployment-3",
    }  # fmt: skip


def test_repeats_are_whole_sweeps_with_their_mean_and_variation(tmp_path: Path) -> None:
    site = Site()
    tree = ran(asked(tmp_path, "search.repeats=3"), site)
    assert {(one.search.budget_s, one.search.start) for one in site.asked} == {(900.0, "ramp")}
    assert tree["capacity"]["qps_per_node"]["value"] == pytest.approx(5.1)
    assert tree["variation_pct"]["value"] == pytest.approx(100 * 0.1 / 5.1)
    text = text_of(tree)
    assert "coefficient of variation 1.96 [1.02, 12.32] %" in text and "search.repeats=5 narrows it" in text


def test_a_repeat_of_several_deployments_pools_them_first(tmp_path: Path) -> None:
    site = Site()
    tree = ran(asked(tmp_path, "search.repeats=2", "search.deployments=2"), site)
    assert len({one.seed for one in site.asked}) == 4
    inner = studies.load_verdict(tmp_path / "one" / "repeat-2")
    assert (inner.study, inner.names) == ("deployments", ("deployment-1", "deployment-2"))
    pooled = [row["qps_per_node"]["value"] for row in tree["parts"]]
    assert pooled == pytest.approx([5.1, 5.2], abs=0.001)
    assert tree["capacity"]["qps_per_node"]["value"] == pytest.approx(5.15, abs=0.001)
    assert tree["requests"]["rows"] == 36


@pytest.mark.parametrize("code", [4, 6])
def test_a_part_without_a_result_ends_the_study_with_its_code(tmp_path: Path, code: int) -> None:
    site = Site({"deployment-2": code})
    tree = ran(asked(tmp_path, "search.deployments=3", "search.budget_s=1200"), site)
    assert (tree["exit_code"], tree["passed"], len(site.asked)) == (code, False, 2)
    assert tree["reason"] == "deployment-2: client_limited: more actors" and tree["capacity"] is None
    text = text_of(tree)
    assert f"no result (exit {code}): client_limited" in text and text.count("no result yet") == 1
    assert ("to go on: python -m loadgen resume" in text) == (code in summary.RESUMABLE)
    assert (study.result(tmp_path / "one") is None) == (code in summary.RESUMABLE)


def test_a_vetoed_part_ends_the_study_for_good(tmp_path: Path) -> None:
    site = Site({"deployment-2": 4}, hold=VETO)
    tree = ran(asked(tmp_path, "search.deployments=2"), site)
    assert tree["exit_code"] == 4 and not summary.resumable(from_tree(StudyVerdict, tree, "a test"))
    path = tmp_path / "one"
    assert study.result(path) is not None and study.result(path / "deployment-2") is not None
    assert "vetoes the answer" in concluded(path)
    assert "to go on" not in concluded(path) + concluded(path / "deployment-2")
    assert measuring.left(path) == f"# {path} has ended: nothing to resume"


def test_the_plan_of_a_resumed_study_counts_what_ended_well_only(tmp_path: Path) -> None:
    ran(asked(tmp_path, "search.deployments=2"), Site({"deployment-2": 5}))
    assert measuring.left(tmp_path / "one") == "# 1 of 2 parts have ended; left: deployment-2"
    (tmp_path / "one" / "study.json").write_text("[]")
    with pytest.raises(RunError, match="study.json is broken: it holds no object"):
        measuring.left(tmp_path / "one")


def test_a_study_cut_short_goes_on_and_answers_as_if_it_never_was(tmp_path: Path) -> None:
    words, at = ["search.deployments=2"], "deployment-2"
    whole = ran(asked(tmp_path / "whole", *words), Site())
    site = Site({at: -1})
    cut = ran(asked(tmp_path, *words), site)
    assert (cut["exit_code"], cut["valid"]) == (130, False)
    assert "INTERRUPTED" in concluded(tmp_path / "one").splitlines()[0]
    site.ends.clear()
    tree = resumed(tmp_path / "one", site)
    assert [before is None for before in site.befores] == [True, False]
    assert (tree["capacity"], tree["parts"]) == (whole["capacity"], whole["parts"])
    assert study.result(tmp_path / "one") is not None


def test_a_killed_study_shows_how_far_it_came(tmp_path: Path) -> None:
    site = Site()

    def killed(experiment: Experiment, folder: RunFolder, *rest: Any) -> Any:
        if folder.run_id == "deployment-2":
            raise Killed
        return site(experiment, folder, *rest)

    with pytest.raises(Killed):
        ran(asked(tmp_path, "search.deployments=2"), killed)
    text = concluded(tmp_path / "one")
    assert text.startswith("UNFINISHED") and "deployment-1          5.00  [4.85, 5.15]" in text
    assert "no result yet" in text and "python -m loadgen resume" in text
    assert measuring.left(tmp_path / "one") == "# 1 of 2 parts have ended; left: deployment-2"


def test_one_process_at_a_time_fills_a_study(tmp_path: Path) -> None:
    experiment = asked(tmp_path, "search.deployments=2")
    held = Folder.create(Path(experiment.out), experiment.run)
    with pytest.raises(OSError, match="filled by another process"):
        Folder(held.path)
    with pytest.raises(ConfigError, match="choose another run=NAME"):
        Folder.create(Path(experiment.out), experiment.run)


def test_windows_that_are_granted_beyond_the_budget_are_part_of_the_plan() -> None:
    short = load(["search=standard", "search.budget_s=10", "search.repeats=2"])
    assert pacing.swept_s(short) == 2 * 6 * (15 + 45)
    assert pacing.compared_s(load(["search=standard", "search.confirm_s=100"])) == 900 + 100 + 900


def begin(*words: str) -> tuple[Start, PlacingPrediction | None, str]:
    """The start of a sweep, and the line that says it."""
    lines: list[str] = []
    emit = lambda _, **facts: lines.append(facts["text"])  # noqa: E731
    return *engine_model.start(load(["search=quick", *words]), "sweep", emit), lines[0]


def test_a_sweep_without_a_predicted_capacity_ramps_and_says_so() -> None:
    start, predicted, line = begin("slo.tpot_p90_ms=1")
    assert (start.prediction_qps, predicted) == (None, None)
    assert "no prediction, the search begins with a ramp: no rate keeps p90 TPOT <= 1 ms: " in line


def test_a_sweep_of_sessions_begins_where_they_are_predicted() -> None:
    start, predicted, line = begin("workload=chat_sessions", "routing=client_side", "workload.sessions=20")
    assert predicted is not None and start.prediction_qps == predicted.qps_per_node.value
    assert 20 < start.prediction_qps < 50 and "the engine model predicts" in line
    assert start.first_below == 0.15, "an overload would cost what is cached"


def test_a_sweep_that_expects_a_capacity_begins_there_and_says_so() -> None:
    start, predicted, line = begin("search.expected_qps=5")
    assert (start.prediction_qps, start.first_below, predicted) == (5.0, 0.05, None)
    assert line.startswith("5 QPS per node is expected (search.expected_qps)")


class ProbeSite(Site):
    """Fills run folders of probes, none of which is ever continued."""

    verb = "probe"

    def __call__(self, job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        assert isinstance(job, OfferLoad) and before is None
        return super().__call__(job, folder, before)


def begun(out: Path, site: ProbeSite) -> Any:
    experiment = load([f"out={out}", "run=one", "fleet.actors=4", "workload.prompt=text", "seed=5"])
    return ran(experiment, site, partial(calibration_probes.CalibrationStudy, guess_qps=5.0))


def test_every_part_is_a_probe_of_its_own_load(tmp_path: Path) -> None:
    site = ProbeSite({})
    tree = begun(tmp_path, site)
    loads = [(a.workload.name, a.concurrency, a.requests, a.rate_qps) for a in site.asked]
    assert loads[0] == ("r1_prefill", 1, 30, None)
    assert loads[7] == ("r2_decode", 256, 2560, None)
    assert loads[13:] == [("r4_check", None, None, pytest.approx(qps)) for qps in (1.5, 2.5, 3.5)]
    assert len(loads) == 16 and len({a.seed for a in site.asked}) == 16
    assert {a.workload.prompt for a in site.asked} == {"text"}
    assert [a.fleet.actors for a in site.asked[:3]] == [1, 2, 4]
    # R3's cached prompt ends in less than three unique blocks.
    cached = site.asked[8].workload
    assert 16 < cached.input_tokens.mean * (1 - cached.prefix_hit) < 48
    assert (tree["exit_code"], tree["evidence"]) == (0, "16 probes")
    text = concluded(tmp_path / "one")
    assert "16 probes: python -m analysis calibrate" in text
    assert any(line.split()[::2] == ["r4-70pct", "recorded"] for line in text.splitlines())
    assert [path.name for path in studies.parts(tmp_path / "one")][::15] == ["r1-c1", "r4-70pct"]


def test_a_probe_that_missed_a_bound_is_recorded_like_any_other(tmp_path: Path) -> None:
    site = ProbeSite({"r2-c4": summary.EXIT_SLO_MISSED})
    tree = begun(tmp_path, site)
    assert (tree["exit_code"], tree["evidence"], len(site.asked)) == (0, "16 probes", 16)
    path = tmp_path / "one"
    lines = [line.split() for line in concluded(path).splitlines()]
    assert path / "r2-c4" in studies.parts(path) and ["r2-c4", "recorded"] in [line[::2] for line in lines]


def test_a_part_that_was_void_is_measured_anew_and_nothing_else(tmp_path: Path) -> None:
    site = ProbeSite({"r2-c4": summary.EXIT_VOID})
    tree = begun(tmp_path, site)
    assert tree["reason"] == "r2-c4: client_limited: more actors"
    assert (tree["exit_code"], len(site.asked)) == (summary.EXIT_VOID, 5)
    path = tmp_path / "one"
    assert len(studies.parts(path)) == 4
    site.ends.clear()
    tree = resumed(path, site, calibration_probes.CalibrationStudy)
    assert (tree["exit_code"], len(tree["parts"]), len(site.asked)) == (0, 16, 17)
    assert site.asked[4] == site.asked[5]
    kept = json.loads((path / "r2-c4.cut1" / "sweep.json").read_text())
    assert kept["exit_code"] == summary.EXIT_VOID


def test_a_recipe_without_any_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs rate_qps="):
        calibration_probes.CalibrationStudy(load([]))


def test_a_study_without_a_result_cannot_be_calibrated(tmp_path: Path) -> None:
    begun(tmp_path, ProbeSite({"r1-c1": summary.EXIT_VOID}))
    with pytest.raises(RunError, match="no part of this study has a result yet"):
        studies.parts(tmp_path / "one")
