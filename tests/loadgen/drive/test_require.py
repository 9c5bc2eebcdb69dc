"""One rate, passed or failed: when an answer is clear, what ends without one, and how it is told."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import LOOK_AHEAD, LOOK_BACK, Dwell, LimitCount
from analysis.results import summary
from analysis.results.json_border import to_tree
from conf import load
from loadgen.__main__ import main
from loadgen.drive import require
from loadgen.drive.driver import Driver
from loadgen.run import verdicts
from loadgen.traffic.schedule import NS
from tests.loadgen.drive.test_sweep import Healing, Spoilt, driver
from tests.support.verdict_trees import text_of


def required(words: list[str], **more: Any) -> tuple[dict[str, Any], list[dict[str, Any]], Driver]:
    """The conclusion, the looks in order, and the driver of a rate required of the engine model."""
    drive, experiment, events = driver(words, **more)
    assert experiment.rate_qps
    found = require.require(drive, experiment.rate_qps, require.seconds(experiment))
    tree = to_tree(verdicts.of_required(experiment, drive, found))
    assert text_of(tree)
    return tree, [facts for kind, facts in events if kind == "look"], drive


# The capacity of the default node is near 3.35 QPS.
@pytest.mark.parametrize(
    ("rate_qps", "verdict", "exit_code", "within_s"),
    [(2.4, "passed", summary.EXIT_OK, 230), (5.2, "failed", summary.EXIT_SLO_MISSED, 110)],
)
def test_far_from_the_knee_the_answer_is_clear_early(
    rate_qps: float, verdict: str, exit_code: int, within_s: float
) -> None:
    tree, looks, drive = required([f"rate_qps={rate_qps}"])
    assert (tree["exit_code"], tree["valid"], tree["probe"]["required"]["verdict"]) == (
        exit_code,
        True,
        verdict,
    )
    assert drive.windows.outcomes[-1].dwell.window_end_ns / NS < within_s
    assert [look["verdict"] for look in looks] == ["undecided"] * (len(looks) - 1) + [verdict]
    first, second = text_of(tree).splitlines()[:2]
    assert first == f"VALID  {rate_qps:g} QPS per node: {verdict}"
    assert second == f"  {tree['reason']}" and looks[-1]["text"].endswith(tree["reason"])


def test_at_the_knee_a_short_look_says_so_with_the_remedy() -> None:
    tree, looks, drive = required(["rate_qps=3.35", "duration_s=155"])
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_OPEN, True, False)
    assert "neither is shown after" in tree["reason"] and "offer longer (duration_s=...)" in tree["reason"]
    windows = [outcome.dwell for outcome in drive.windows.outcomes]
    assert len(looks) == len(windows) == 3
    # No gap in the load: for this second the arrivals of the window before go on.
    assert [b.window_start_ns - a.window_end_ns for a, b in pairwise(windows)] == [NS, NS]


def test_a_spoilt_load_neither_passes_nor_fails() -> None:
    words = ["rate_qps=2.4"]
    tree, _, drive = required(words, target=Spoilt(load(words), send_offset_ns=NS // 10))
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_VOID, False, False)
    assert tree["reason"].startswith("client_limited: 2 windows in a row were void. Give the load generator")
    assert len(drive.windows.outcomes) == 2


def test_a_lost_load_actor_costs_its_window_only() -> None:
    words = ["rate_qps=2.4"]
    tree, _, drive = required(words, target=Healing(load(words), at_s=100, times=1))
    assert tree["exit_code"] == summary.EXIT_OK
    assert [outcome.void for outcome in drive.windows.outcomes].count(True) == 1


WHOLE_S = 12 * 45.0
BLOCKS = 9
LOAD = tuple(4.8 if i % 8 < 4 else 3.2 for i in range(LOOK_BACK + BLOCKS + LOOK_AHEAD))


def window(index: int, over: int) -> Dwell:
    """A window of 180 requests at 4 QPS, of which the first so many were over each limit."""
    start_ns, end_ns = 45 * index * NS, 45 * (index + 1) * NS
    blocks = tuple(min(max(over - 20 * i, 0), 20) for i in range(BLOCKS))
    limit = LimitCount(over, 180, blocks, (20,) * BLOCKS)
    ends = start_ns, start_ns, end_ns, end_ns
    known: dict[str, Any] = {"requests": 180, "log_work": math.log(4), "load": LOAD, "work_var": 0.1}
    return Dwell(index, "dwell", 4.0, 1, *ends, **known, ttft=limit, tpot=limit)


@pytest.mark.parametrize(
    ("over", "tight", "verdict"),
    [
        ([0, 0], [0, 0], "undecided"),  # a quiet minute is no evidence
        ([0, 0, 0], [0, 0, 0], "undecided"),
        ([0, 0, 0, 0], [0, 0, 0, 0], "passed"),
        ([8, 8, 8, 8], [10, 10, 10, 40], "undecided"),  # within the bounds, but not far within
        ([170], [180], "failed"),
        ([130], [180], "undecided"),  # at the capacity one run in thirty begins so
        ([60], [90], "undecided"),  # one burst is no evidence
        ([20, 20, 20], [40, 40, 40], "undecided"),
        ([], [], "undecided"),
    ],
)
def test_when_an_answer_is_clear(over: list[int], tight: list[int], verdict: str) -> None:
    dwells, tightened = ([window(i, count) for i, count in enumerate(counts)] for counts in (over, tight))
    assert require.decide(4.0, dwells, tightened, WHOLE_S, behind=False).verdict == verdict


def test_before_the_first_window_no_side_is_favoured() -> None:
    assert posterior([], require.prior(4.0)).qps_per_node == pytest.approx(4.0, rel=0.002)


def decided(over: list[int], whole_s: float = WHOLE_S, behind: bool = False) -> require.Look:
    """What windows without a single calm one show."""
    dwells, busy = ([window(i, each) for i, each in enumerate(counts)] for counts in (over, [90] * len(over)))
    return require.decide(4.0, dwells, busy, whole_s, behind)


WITHIN, OVER = [0] * 12, [40] * 6


def test_the_interval_decides_where_nothing_is_clear_at_once() -> None:
    assert decided(OVER).reason.startswith("the capacity is at most")
    assert decided(WITHIN).reason.startswith("the capacity is at least")
    assert all("at most 5 % of runs say so wrongly" in decided(over).reason for over in (WITHIN, OVER))


@pytest.mark.parametrize(("over", "verdict"), [(WITHIN, "passed"), (OVER, "failed")])
def test_the_same_windows_show_less_at_an_early_look_than_at_the_last_one(
    over: list[int], verdict: str
) -> None:
    last, early = (decided(over, 45.0 * looks) for looks in (len(over), 40 * len(over)))
    assert (last.verdict, early.verdict) == (verdict, "undecided")
    assert last.capacity == early.capacity  # what is believed is the same; what may be said of it is not


def test_nothing_passes_while_answers_fall_behind_but_it_may_fail() -> None:
    assert decided(WITHIN, behind=True).verdict == "undecided"
    assert "more slowly than requests come" in decided(WITHIN, behind=True).reason
    assert decided(OVER, behind=True).verdict == "failed"
    calm = [window(i, 0) for i in range(4)]
    assert require.decide(4.0, calm, calm, WHOLE_S, behind=True).verdict == "undecided"


@pytest.mark.parametrize(
    ("longest_s", "windows"), [(60, 1), (100, 1), (106, 2), (600, 12), (607, 12), (612, 13)]
)
def test_the_looks_that_there_may_be_are_the_windows_that_fit(longest_s: float, windows: int) -> None:
    assert require.windows_s(longest_s, transition_s=15, window_s=45, bridge_s=1) == windows * 45


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["probe", "concurrency=4", "--require"], "--require needs rate_qps"),
        (["probe", "rate_qps=4", "duration_s=30", "--require"], "raise it to 60"),
        (["probe", "rate_qps=0.1", "duration_s=100", "--require"], "raise it to 215"),
        (
            ["probe", "rate_qps=0.001", "--require"],
            "duration_s=600 is short of one window; raise it to 20015",
        ),
        (["sweep", "--require"], "--require belongs to probe; sweep finds the rate itself"),
        (["resume", "runs/x", "--require"], "--require belongs to probe; resume goes on with what was asked"),
        (["probe", "rate_qps=4", "--dry-run", "--json"], "leave --json out"),
        (
            ["probe", "rate_qps=4", "search=quick", "search.expected_qps=4"],
            "search.expected_qps belongs to a",
        ),
    ],
)
def test_what_cannot_be_required_is_refused(words: list[str], said: str, capsys: Any) -> None:
    assert main(words) == summary.EXIT_USAGE
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


@pytest.mark.parametrize(("flag", "ends"), [(["--require"], "run=NAME --require"), ([], "run=NAME")])
def test_a_probe_is_not_resumed_but_run_again_as_it_was(
    flag: list[str], ends: str, tmp_path: Path, capsys: Any
) -> None:
    argv = ["loadgen", "probe", "rate_qps=4", *flag]
    (tmp_path / "manifest.json").write_text(json.dumps({"verb": "probe", "argv": argv}))
    assert main(["resume", str(tmp_path), "--dry-run"]) == summary.EXIT_USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: a probe is not continued") and error.endswith(f"{ends}\n")


def test_the_plan_of_a_required_rate_says_how_long_it_may_take(capsys: Any) -> None:
    assert main(["probe", "rate_qps=4", "--require", "--dry-run"]) == summary.EXIT_OK
    assert "600 s of load" in capsys.readouterr().out
