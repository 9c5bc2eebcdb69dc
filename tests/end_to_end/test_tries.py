"""`tests.support.machine.tries` and `stutter`: no void counts as green, and a stopped command goes on."""

import subprocess
import sys
import time
from typing import Any

import pytest

from analysis.results import summary
from tests.support.machine import stutter, tries


def verdict(code: int, *void: str) -> dict[str, Any]:
    windows = [{"valid": not reason, "void_reason": reason} for reason in ("", *void)]
    return {"exit_code": code, "windows": windows, "reason": f"{void[0]}: why" if void else ""}


BUSY = verdict(summary.EXIT_VOID, "engine_late")


@pytest.mark.parametrize("void", range(tries.TRIES))
def test_a_valid_run_ends_the_tries(void: int) -> None:
    runs = [*([BUSY] * void), verdict(summary.EXIT_OK)]
    assert tries.valid(lambda number: runs[number]) is runs[void]


def test_three_void_runs_fail() -> None:
    with pytest.raises(AssertionError, match="no valid run in 3 tries: .*engine_late"):
        tries.valid(lambda _: BUSY)


def test_an_open_end_is_repeated_where_both_ends_are_wanted() -> None:
    runs = [verdict(summary.EXIT_OPEN), verdict(summary.EXIT_OK)]
    assert tries.valid(lambda number: runs[number], enough=tries.bracketed) is runs[1]


@pytest.mark.parametrize(
    "tree", [verdict(summary.EXIT_OK, "wrong_prompts"), verdict(summary.EXIT_VOID, "replica_lost")]
)
def test_a_reason_that_no_busy_machine_gives_fails_at_once(tree: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="void for"):
        tries.valid(lambda _: tree)
    tries.refuse_other_reasons(tree, also=("wrong_prompts", "replica_lost"))


def test_a_run_that_is_void_as_a_whole_needs_a_reason_too() -> None:
    with pytest.raises(AssertionError, match="vetoed"):
        tries.valid(lambda _: {**BUSY, "reason": "vetoed: the 5 % quantile was held"})


@pytest.mark.slow
def test_a_stuttered_command_ends_with_its_own_code() -> None:
    began_s = time.monotonic()
    words = [sys.executable, "-IS", "-c", "import time\ntime.sleep(1.5)\nraise SystemExit(7)"]
    assert stutter.run(words, burners=1) == 7
    assert time.monotonic() - began_s > stutter.RUN_S + stutter.STOP_S, "it never stood still"


@pytest.mark.slow
def test_what_stops_the_stutter_ends_its_command() -> None:
    tool = [sys.executable, "-m", "tests.support.machine.stutter", "--", "python", "-c"]
    script = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen([*tool, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.terminate()
        # The command holds the other end of the pipe until it has ended.
        assert process.stdout.read() == ""
    assert process.returncode == 143
