"""loadgen.cli.machine: a sweep on a simulated engine saves time, and slows where it would be void."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analysis import load_run
from analysis.capacity.rules import Verdict
from analysis.results.summary import EXIT_VOID
from analysis.results.verdicts import RunVerdict
from conf import load
from loadgen.__main__ import main
from loadgen.cli import machine, measuring
from loadgen.run.jobs import Job, Site
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Stop, WindowPlan
from tests.support.runs.golden import GOLDEN

PLAIN = load([])
VALID, VOID = Verdict(True, "", ()), Verdict(False, "path_slow", ())
LATE = Verdict(False, "engine_late", ())


def unused(*_: Any) -> Any:
    raise AssertionError("a played sweep starts nothing")


SITE = Site(unused, unused)


@pytest.mark.parametrize(
    ("words", "is_free"),
    [
        ([], True),
        (["search=standard"], True),
        (["engine.time_scale=1"], False),
        (["engine.time_scale=5"], False),
        (["search.repeats=2"], False),
        (["target.urls=[http://127.0.0.1:9]", "engine=external"], False),
    ],
)
def test_the_clock_is_free_where_one_search_runs_on_a_simulated_engine(
    words: list[str], is_free: bool
) -> None:
    assert machine.is_free(load(words), words) == is_free


@pytest.mark.parametrize(("cores", "nodes", "scale"), [(4, 1, 3.0), (2, 1, 2.5), (2, 4, 1.0), (16, 4, 3.0)])
def test_the_clock_follows_the_load_and_the_cores(
    cores: int, nodes: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)
    experiment = PLAIN if nodes == 1 else load(["cluster=laptop_4n"])
    assert machine.fast(experiment).time_scale == scale


@pytest.mark.parametrize(("free", "scale"), [(1.6, 3.0), (0.6, 1.0), (0.0, 1.0)])
def test_beside_busy_neighbours_the_clock_is_the_real_one(
    free: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_cores", lambda: free)
    fast = machine.with_clock(PLAIN, 3.0)
    assert machine.beside_neighbours(fast).time_scale == scale


def ended(scale: float, reason: str) -> RunVerdict:
    verdict = load_run(GOLDEN).verdict
    assert verdict
    experiment = replace(verdict.experiment, time_scale=scale)
    if not reason:
        return replace(verdict, experiment=experiment)
    return replace(
        verdict, experiment=experiment, valid=False, exit_code=EXIT_VOID, reason=f"{reason}: remedy"
    )


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Plays sweeps that end with these reasons, and returns the scales at which they ran."""

    def play(out: Path, *reasons: str) -> list[float]:
        scales: list[float] = []

        class PlayedRun:
            def __init__(self, job: Job, folder: RunFolder, *_: Any) -> None:
                self._scale = job.experiment.time_scale
                folder.close()

            def measure(self) -> RunVerdict:
                scales.append(self._scale)
                return ended(self._scale, reasons[len(scales) - 1])

        monkeypatch.setattr(measuring, "RunLifecycle", PlayedRun)
        experiment = load(["engine.time_scale=3", f"out={out}", "run=x"])
        measuring.run(machine.SearchOnFastClock(experiment), SITE, lambda *_, **__: None)
        return scales

    return play


@pytest.mark.parametrize(
    ("reasons", "scales"),
    [
        ([""], [3.0]),
        (["client_limited", ""], [3.0, 2.5]),
        (["engine_late", "client_limited", "client_limited", ""], [3.0, 2.5, 2.0, 1.0]),
        (["path_slow"], [3.0]),
    ],
)
def test_a_sweep_that_was_late_begins_again_on_a_slower_clock_in_the_same_folder(
    reasons: list[str], scales: list[float], played: Callable[..., list[float]], tmp_path: Path
) -> None:
    assert played(tmp_path, *reasons) == scales
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def stops(scale: float, *judged: Verdict) -> bool:
    """Whether the search on such a clock ends after these windows."""
    windows = SimpleNamespace(outcomes=[SimpleNamespace(verdict=verdict) for verdict in judged])
    driver: Any = SimpleNamespace(plan=SimpleNamespace(time_scale=scale), windows=windows)
    steps: list[WindowPlan | Stop] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "focus", lambda _: WindowPlan(0, "window", 1.0, 0.0, 1.0, False, ""))
        patch.setattr(machine, "sweep", lambda driver, choose: steps.append(choose(driver)))
        machine.SearchOnFastClock(PLAIN).load(driver)
    return isinstance(steps[0], Stop)


def test_a_late_search_on_a_fast_clock_loads_no_further_window() -> None:
    assert stops(3.0, LATE) and stops(3.0, VALID, LATE) and not stops(1.0, LATE)
    assert not (stops(3.0) or stops(3.0, VALID, VOID) or stops(3.0, VALID, VALID, LATE))


def test_a_dry_run_counts_real_seconds_too(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert main(["sweep", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "at most 2 min 46 s if answers are late (simulated clock x3)" in output
    assert "engine.time_scale" not in output
    assert main(["sweep", "--dry-run", "engine.time_scale=1"]) == 0
    assert "simulated clock" not in capsys.readouterr().out
