"""What tests stand on: no void counts as green, a stopped command goes on, a toy queue is that of books."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from analysis.results import summary
from tests.support.machine import stutter, tries
from tests.support.virtual.toy_services import OneAtATime, waits_longer


def verdict(code: int, *void: str) -> dict[str, Any]:
    windows = [{"valid": not reason, "void_reason": reason} for reason in ("", *void)]
    return {"exit_code": code, "windows": windows, "reason": f"{void[0]}: why" if void else ""}


BUSY = verdict(summary.EXIT_VOID, "engine_late")
OPEN, OK = verdict(summary.EXIT_OPEN), verdict(summary.EXIT_OK)
WRONG, LOST = verdict(summary.EXIT_OK, "wrong_prompts"), verdict(summary.EXIT_VOID, "replica_lost")


@pytest.mark.parametrize("runs", [[OK], [BUSY, OK], [BUSY, BUSY, OK], [OPEN, OK]])
def test_a_valid_run_with_both_ends_ends_the_tries(runs: list[dict[str, Any]]) -> None:
    assert tries.valid(lambda number: runs[number], enough=tries.bracketed) is OK


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (BUSY, "no valid run in 3 tries: .*engine_late"),
        (WRONG, "void for"),  # no busy machine gives this reason
        (LOST, "void for"),
        ({**BUSY, "reason": "vetoed: the 5 % quantile was held"}, "vetoed"),
    ],
)
def test_void_runs_and_other_reasons_than_a_busy_machines_fail(tree: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        tries.valid(lambda _: tree)
    tries.refuse_other_reasons(tree, also=("wrong_prompts", "replica_lost", "vetoed"))


STOPPED = """import time
began = before = now = time.monotonic()
while now - before < 0.4 and now - began < 60:
    before, now = now, time.monotonic()
raise SystemExit(7 if now - before > 0.4 else 0)"""
"""Ends once it stood still."""


def test_a_stuttered_command_stands_still_and_ends_with_its_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stutter, "RUN_S", 0.1)
    monkeypatch.setattr(stutter, "STOP_S", 0.5)
    assert stutter.run([sys.executable, "-IS", "-c", STOPPED], burners=1) == 7
    assert stutter.run(["sh", "-c", "kill -9 $$"], burners=0) == 137


def test_what_stops_the_stutter_ends_its_command() -> None:
    tool = [sys.executable, "-m", "tests.support.machine.stutter", "--", "python", "-c"]
    script = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    with subprocess.Popen([*tool, script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.terminate()
        # The command holds the other end of the pipe until it has ended.
        assert process.stdout.read() == ""
    assert process.returncode == 143


def test_the_queue_of_one_at_a_time_is_the_one_of_the_books():
    """Who comes to a busy server waits, and so many of 20,000 wait longer as the closed form says."""
    assert waits_longer(0.6, 1.0, 0.0) == pytest.approx(0.6)
    rng = np.random.default_rng(4)
    at_s = np.cumsum(rng.exponential(1 / 0.6, 20_000)).tolist()
    server = OneAtATime(1.0)
    for key, at in enumerate(at_s):
        server.submit(key, at, 1, 10)
    server.advance(1e9)
    waits = np.array([a.first_token_s - 0.1 - a.at_s for a in server.observe()])
    for seconds in (0.5, 1.5, 3.2):
        assert (waits > seconds + 1e-6).mean() == pytest.approx(waits_longer(0.6, 1.0, seconds), rel=0.08)
