"""maxqps/__main__.py: what a shell is offered for the next word of `maxqps`, asked as bash asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
BREAKS = " \t\n\"'><=;|&(:"
"""Letters at which bash breaks words; it takes only what follows the last one."""
COMMAND = [sys.executable, "-m", "maxqps"]
FORKED = """
import os, sys
import argcomplete, analysis.__main__, loadgen.cli.arguments
from maxqps import __main__
for line in sys.argv[1:]:
    if not os.fork():
        os.environ.update(COMP_LINE=line, COMP_POINT=str(len(line)))
        os.environ["_ARGCOMPLETE_STDOUT_FILENAME"] += line
        __main__.main([])
    os.wait()
"""
"""The command once for each line, in a process that imports it once, because that takes most of the time."""
OFFERS = [
    ("maxqps swe", "sweep"),
    ("maxqps sweep lay", "layout="),
    ("maxqps sweep layout=dp2_tp4", "dp2_tp4_ep4"),
    ("maxqps sweep slo.ttft_p", "slo.ttft_p90_ms="),
    ("maxqps sweep engine.kernels=a", "aiter"),
    ("maxqps probe --req", "--require"),
    ("maxqps analysis compare --h", "--help"),
    ("maxqps plan --o", "--out"),
    ("maxqps plan demand.pe", "demand.peak_qps="),
]
ALL_FLAGS = "maxqps sweep --"


def asked(folder: Path, command: list[str], line: str = "") -> None:
    """Run a command as bash does that wants to know the next word of a line, in `folder`."""
    of_bash = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer"),
        "_ARGCOMPLETE_COMP_WORDBREAKS": BREAKS,
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run(command, env={**os.environ, **of_bash}, cwd=folder, check=True, timeout=120)


def words(answer: Path) -> list[str]:
    return [word.strip() for word in answer.read_text().splitlines()]


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What is offered for each line."""
    folder = tmp_path_factory.mktemp("answers")
    lines = [ALL_FLAGS, *(line for line, _ in OFFERS)]
    asked(folder, [sys.executable, "-c", FORKED, *lines])
    return {line: words(folder / f"answer{line}") for line in lines}


@pytest.mark.parametrize(("line", "wanted"), OFFERS)
def test_a_shell_is_offered_the_next_word(line: str, wanted: str, offered: dict[str, list[str]]) -> None:
    assert wanted in offered[line]


def test_flags_of_other_verbs_are_not_offered(offered: dict[str, list[str]]) -> None:
    assert "--require" not in offered[ALL_FLAGS]
    assert "--dry-run" in offered[ALL_FLAGS]


def test_folders_are_offered_where_a_run_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    asked(tmp_path, COMMAND, "maxqps show ru")
    assert "runs/" in words(tmp_path / "answer")


def test_the_command_itself_offers_what_it_offered_above(
    tmp_path: Path, offered: dict[str, list[str]]
) -> None:
    asked(tmp_path, COMMAND, ALL_FLAGS)
    assert words(tmp_path / "answer") == offered[ALL_FLAGS]
