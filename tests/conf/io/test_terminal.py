"""conf.io.terminal: nothing that a terminal obeys, and on stdout nothing but results."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from conf.io import terminal
from conf.io.one_line import plain
from loadgen.run import progress

HOSTILE = ("\x1b[2J", "\x1b]0;t\x07", "\x9b2J", "\u202e", "\u2028", "\x00", "\r", "\ud800")
DONE = {
    "index": 3,
    "kind": "window",
    "rate_qps_per_node": 5.21,
    "requests": 246,
    "verdict": "within",
}
HOME = Path(__file__).parents[3]
OTHERS = """
import os, sys
from conf.io import terminal
with terminal.own_stdout() as out:
    print("from Python")
    os.system("echo from a child")
    os.write(1, b"from native code\\n")
    terminal.tell('{"ours": 1}', out)
print("afterwards")
sys.stdout.flush()
os.system("echo and a child")
"""
WITH_RAY = """
import os, time
import ray
from cluster.ray_session.session import open_session
from conf.io import terminal
from conf.specs.experiment import Cluster
here = Cluster("here", session="local", nodes=1, gpus_per_node=1)
with terminal.own_stdout() as out, open_session(here, None):
    dies = ray.remote(num_cpus=0, max_retries=0)(lambda: os.kill(os.getpid(), 9))
    try:
        ray.get(dies.remote())
    except ray.exceptions.RayError:
        terminal.tell('{"event": "it died"}', out)
    time.sleep(2)
terminal.tell('{"event": "result"}')
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=HOME)


def test_stdout_is_ours_alone() -> None:
    done = run(OTHERS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['{"ours": 1}', "afterwards", "and a child"]
    assert {"from Python", "from a child", "from native code"} <= set(done.stderr.splitlines())


@pytest.mark.slow
@pytest.mark.ray
def test_what_ray_prints_is_no_result() -> None:
    done = run(WITH_RAY)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()] == ["it died", "result"]


def test_a_stdout_that_is_none_of_the_process_is_kept_too(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.own_stdout() as out:
        sys.stdout.write("a stranger\n")
        terminal.tell("ours", out)
    assert capsys.readouterr() == ("ours\n", "a stranger\n")


@pytest.mark.battery("hostile endpoint")
@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_nothing_that_a_terminal_obeys_is_said(
    word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.tell(f"one{word}\ntwo{word}")
    terminal.note(f"three{word}")
    terminal.error(ValueError(f"four\nfive{word}"))
    with progress.shown(as_json=False) as show:
        show("warm", text=f"six{word}")
        show("window_done", **DONE | {"verdict": f"seven{word}", "kind": f"eight{word}"})
    out, err = capsys.readouterr()
    assert [line[:3] for line in out.splitlines()] == ["one", "two"]
    assert len(err.splitlines()) == 4
    assert all(line.isprintable() for line in [*out.splitlines(), *err.splitlines()])
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda **_: Console(file=screen, width=200, force_terminal=False)
    )
    live = progress.LiveScreen()
    with live.live:
        live("prediction", text=f"nine{word}")
        live("window_done", **DONE | {"verdict": f"ten{word}"})
        lines = live.drawn().plain.split("\n")
    assert all(line.isprintable() for line in lines) and any("nine" in line for line in lines)


@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_json_lines_are_ascii_and_mean_what_was_said(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=True) as show:
        show("warm", text=f"a{word}")
    out, _ = capsys.readouterr()
    assert out.isascii() and out.removesuffix("\n").isprintable()
    assert json.loads(out)["text"] == f"a{word}"


def test_a_tree_of_json_is_made_plain_everywhere() -> None:
    assert plain({"a\x1b": ["b\n", {"c": "d\x9b"}, 1, None, 2.5, True]}) == {
        "a ": ["b ", {"c": "d "}, 1, None, 2.5, True]
    }
