"""What a shell is offered for the next word of `maxqps`, asked as bash asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BREAKS = " \t\n\"'><=;|&(:"
"""Letters at which bash breaks words; it takes only what follows the last one."""


def offered(line: str, folder: Path) -> list[str]:
    answer = folder / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_COMP_WORDBREAKS": BREAKS,
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    subprocess.run(
        [sys.executable, "-m", "maxqps"], env={**os.environ, **asked}, cwd=folder, check=True, timeout=120
    )
    return [word.strip() for word in answer.read_text().splitlines()]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("maxqps swe", "sweep"),
        ("maxqps sweep lay", "layout="),
        ("maxqps sweep layout=dp2_tp4", "dp2_tp4_ep4"),
        ("maxqps sweep slo.ttft_p", "slo.ttft_p90_ms="),
        ("maxqps sweep engine.kernels=a", "aiter"),
        ("maxqps probe --req", "--require"),
        ("maxqps analysis compare --h", "--help"),
        ("maxqps plan --o", "--out"),
        ("maxqps plan demand.pe", "demand.peak_qps="),
    ],
)
def test_a_shell_is_offered_the_next_word(line: str, wanted: str, tmp_path: Path) -> None:
    assert wanted in offered(line, tmp_path)


def test_flags_of_other_verbs_are_not_offered(tmp_path: Path) -> None:
    assert "--require" not in offered("maxqps sweep --", tmp_path)


def test_folders_are_offered_where_a_run_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert "runs/" in offered("maxqps show ru", tmp_path)
