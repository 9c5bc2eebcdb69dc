"""What README.md shows in its first screen, typed in a shell against an endpoint with another model."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from analysis import load_run
from tests.support.machine.patience import START_S
from tests.support.servers.mock_server import answer, serving

ROOT = Path(__file__).parents[2]
FIRST_SCREEN = (ROOT / "README.md").read_text().partition("<!-- answer -->")[0]
SHELLS = ("bash", "zsh")
SHORT = (
    "budget=30s search.highest_qps=3 search.window_s=5 search.first_transition_s=2 search.transition_s=1 "
    "search.min_windows=2 fleet.warmup_requests=4 fleet.drain_s=3 search.settle_s=5"
)
"""Words that make a sweep short: the server is fast, so that the search soon ends at its highest rate."""


def command(url: str) -> str:
    """The README's command for an endpoint, with its address and the program of this checkout."""
    (line,) = re.findall(r"^\.venv/bin/maxqps sweep http://HOST:8000.*$", FIRST_SCREEN, re.M)
    line = line.partition("#")[0].strip().replace("http://HOST:8000", url)
    return line.replace(".venv/bin/maxqps", f"{sys.executable} -m maxqps")


def typed(shell: str, line: str) -> "subprocess.CompletedProcess[str]":
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed here")
    return subprocess.run(
        [shell, "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=START_S + 300
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_command_as_it_stands(shell: str, tmp_path: Path) -> None:
    """No word of it is a pattern, and the served model is read from the endpoint."""
    with serving(answer) as server:
        done = typed(shell, f"{command(server.url)} --dry-run -o {tmp_path}")
    assert done.returncode == 0, done.stderr
    assert f'target.urls: ["{server.url}"]' in done.stdout
    assert 'model.served_name: "m"' in done.stdout


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_ends_with_a_verdict(shell: str, tmp_path: Path) -> None:
    with serving(lambda body: answer(body, pause_s=0.001)) as server:
        done = typed(shell, f"{command(server.url)} {SHORT} -o {tmp_path} run=mine")
    assert done.returncode in (0, 6), done.stdout + done.stderr
    assert done.stdout.startswith("VALID  ") and "service: m on unknown hardware" in done.stdout
    assert "load after the start" in done.stderr
    assert (tmp_path / "mine" / "report.html").exists() and load_run(tmp_path / "mine").verdict
