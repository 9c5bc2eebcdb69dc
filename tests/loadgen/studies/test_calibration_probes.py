"""loadgen/studies/calibration_probes.py: what each probe asks, and what becomes of one cut short."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis.results import studies, summary
from analysis.results.asked import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.runs import RunError
from analysis.results.verdicts import RunVerdict
from conf import ConfigError, Experiment, load
from loadgen.cli import measuring
from loadgen.cli.words import experiment_of
from loadgen.drive.plan import Past
from loadgen.run.jobs import Job, OfferLoad
from loadgen.run.run_folder import Folder, RunFolder, created
from loadgen.studies import calibration_probes, study
from tests.support.runs.verdict_trees import screen_of_folder as concluded
from tests.support.virtual.virtual_drivers import silent


class Site:
    """Fills run folders at once; `ends` says which part ends otherwise, and with which code."""

    def __init__(self, ends: dict[str, int]) -> None:
        self.asked: list[Experiment] = []
        self.ends = ends

    def __call__(self, job: Job, folder: RunFolder, before: Past | None) -> RunVerdict:
        assert isinstance(job, OfferLoad) and before is None
        experiment = job.experiment
        self.asked.append(experiment)
        code = self.ends.get(folder.run_id, 0)
        folder.write_json("manifest.json", {"verb": "probe"})
        tree = {"verb": "probe", "exit_code": code, "reason": "void" if code else "", "valid": code == 0}
        tree["asked"] = to_tree(describe(experiment))
        folder.write_json("sweep.json", tree)
        folder.close()
        return from_tree(RunVerdict, tree, folder.path)


def begun(out: Path, site: Site) -> dict[str, Any]:
    asked = load([f"out={out}", "run=one", "fleet.actors=4", "workload.prompt=text", "seed=5"])
    return to_tree(
        study.run(
            calibration_probes.CalibrationStudy(asked, guess_qps=5.0),
            created(Folder, asked),
            site,
            silent,
        )
    )


def resumed(path: Path, site: Site) -> dict[str, Any]:
    asked = experiment_of(measuring.verb(path), [], path / "config.yaml")
    return to_tree(study.run(calibration_probes.CalibrationStudy(asked), Folder(path), site, silent))


def test_every_part_is_a_probe_of_its_own_load(tmp_path: Path) -> None:
    site = Site({})
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
    assert "16 probes: python -m analysis calibrate" in text and "r4-70pct  recorded" in text
    assert [path.name for path in studies.parts(tmp_path / "one")][::15] == ["r1-c1", "r4-70pct"]


def test_a_probe_that_missed_a_bound_is_recorded_like_any_other(tmp_path: Path) -> None:
    site = Site({"r2-c4": summary.EXIT_SLO_MISSED})
    tree = begun(tmp_path, site)
    assert (tree["exit_code"], tree["evidence"], len(site.asked)) == (0, "16 probes", 16)
    path = tmp_path / "one"
    assert path / "r2-c4" in studies.parts(path) and "r2-c4     recorded" in concluded(path)


def test_a_part_that_was_void_is_measured_anew_and_nothing_else(tmp_path: Path) -> None:
    site = Site({"r2-c4": summary.EXIT_VOID})
    tree = begun(tmp_path, site)
    assert (tree["exit_code"], tree["reason"], len(site.asked)) == (summary.EXIT_VOID, "r2-c4: void", 5)
    path = tmp_path / "one"
    assert len(studies.parts(path)) == 4
    site.ends.clear()
    tree = resumed(path, site)
    assert (tree["exit_code"], len(tree["parts"]), len(site.asked)) == (0, 16, 17)
    assert site.asked[4] == site.asked[5]
    kept = json.loads((path / "r2-c4.cut1" / "sweep.json").read_text())
    assert kept["exit_code"] == summary.EXIT_VOID


@pytest.mark.parametrize(
    ("words", "guess_qps", "says"),
    [
        ([], None, "needs rate_qps="),
        (["cluster=laptop_4n"], 5.0, "measures one node, not cluster.nodes=4"),
    ],
)
def test_what_makes_no_recipe_is_refused(words: list[str], guess_qps: float | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        calibration_probes.CalibrationStudy(load(words), guess_qps)


def test_a_study_without_a_result_cannot_be_calibrated(tmp_path: Path) -> None:
    begun(tmp_path, Site({"r1-c1": summary.EXIT_VOID}))
    with pytest.raises(RunError, match="no part of this study has a result yet"):
        studies.parts(tmp_path / "one")


def test_the_rate_is_guessed_for_the_traffic_that_it_is_offered() -> None:
    asked = load(["workload=smoke", "workload.prompt=text"])
    checked = calibration_probes.check_experiment(asked).workload
    assert (checked.name, checked.prompt) == ("r4_check", "text")
