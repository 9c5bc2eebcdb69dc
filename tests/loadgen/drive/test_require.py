"""loadgen/drive/programs.py: one rate, passed or failed; when an answer is clear, what ends without one."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.results import summary
from analysis.results.json_border import to_tree
from conf import load
from loadgen.__main__ import main
from loadgen.drive.driver import Driver
from loadgen.drive.programs import require, required_s
from loadgen.run import verdicts
from loadgen.search import acceptance
from loadgen.traffic.schedule import NS
from tests.support.runs.verdict_trees import text_of
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_drivers import Altering, driver
from tests.support.virtual.virtual_target import VirtualTarget


def required(words: list[str], **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Driver]:
    """The conclusion, the looks in order, and the driver of a rate required of the engine model."""
    drive, experiment, events = driver(words, **more)
    assert experiment.rate_qps
    result = require(drive, experiment.rate_qps, required_s(experiment))
    tree = to_tree(verdicts.required_verdict(experiment, drive, result))
    assert text_of(tree)
    return tree, [facts for kind, facts in events if kind == "look"], drive


# The capacity of the default node is near 3.35 QPS.
@pytest.mark.parametrize(
    ("rate_qps", "verdict", "exit_code"),
    [
        (2.4, "passed", summary.EXIT_OK),
        (5.2, "failed", summary.EXIT_SLO_MISSED),
    ],
)
def test_far_from_the_knee_the_answer_is_clear(rate_qps: float, verdict: str, exit_code: int) -> None:
    tree, looks, _ = required([f"rate_qps={rate_qps}"])
    assert (tree["exit_code"], tree["valid"], tree["probe"]["required"]["verdict"]) == (
        exit_code,
        True,
        verdict,
    )
    assert verdict == "passed" or len(looks) == 1  # a failure is clear at once
    assert [look["verdict"] for look in looks] == ["undecided"] * (len(looks) - 1) + [verdict]
    first, second = text_of(tree).splitlines()[:2]
    assert first == f"VALID  {rate_qps:g} QPS per node: {verdict}; requests of 5600/140 tokens"
    assert second == f"  why: {tree['reason']}" and looks[-1]["text"].endswith(tree["reason"])


def test_at_the_knee_a_short_look_says_so_with_the_remedy() -> None:
    tree, looks, drive = required(["rate_qps=3.35", "duration_s=200"])
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_OPEN, True, False)
    assert "neither is shown after" in tree["reason"] and "offer longer (duration_s=...)" in tree["reason"]
    windows = [outcome.counts for outcome in drive.windows.outcomes]
    assert len(looks) == len(windows) == 3
    # No gap in the load: for this second the arrivals of the window before go on.
    assert [b.window_start_ns - a.window_end_ns for a, b in pairwise(windows)] == [NS, NS]


def test_the_shortest_duration_has_room_for_a_pass() -> None:
    quick = VirtualTarget(OneAtATime(0.05))
    _, looks, _ = required(["rate_qps=3", "duration_s=289"], target=quick)
    assert len(looks) == acceptance.PASS_WINDOWS


def test_an_invalid_load_neither_passes_nor_fails() -> None:
    words = ["rate_qps=2.4"]
    tree, _, drive = required(words, target=Altering(load(words), send_offset_ns=NS // 10))
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_VOID, False, False)
    assert tree["reason"].startswith("client_limited: 2 windows in a row were void. Give the load generator")
    assert len(drive.windows.outcomes) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["probe", "concurrency=4", "--require"], "--require needs rate_qps"),
        (["probe", "rate_qps=4", "duration_s=288", "--require"], "raise it to 289"),
        (["probe", "rate_qps=0.1", "duration_s=100", "--require"], "raise it to 1064"),
        (
            ["probe", "rate_qps=0.001", "--require"],
            "duration_s=600 is short of the 5 windows that a pass takes; raise it to 100064",
        ),
        (["resume", "runs/x", "--require"], "--require belongs to probe; leave it out"),
        (
            ["probe", "rate_qps=4", "search=quick", "search.expected_qps=4"],
            "search.expected_qps belongs to a",
        ),
    ],
)
def test_what_cannot_be_required_is_refused(words: list[str], message: str, capsys: Any) -> None:
    assert main(words) == summary.EXIT_USAGE
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


@pytest.mark.parametrize(("flag", "ends"), [(["--require"], "run=NAME --require"), ([], "run=NAME")])
def test_a_probe_is_not_resumed_but_run_again_as_it_was(
    flag: list[str], ends: str, tmp_path: Path, capsys: Any
) -> None:
    argv = ["loadgen", "probe", "rate_qps=4", *flag]
    (tmp_path / "manifest.json").write_text(json.dumps({"verb": "probe", "argv": argv}))
    assert main(["resume", str(tmp_path), "--dry-run"]) == summary.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: a probe is not continued") and error.endswith(f"{ends}\n")
