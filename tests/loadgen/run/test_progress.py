"""loadgen/run/progress.py: plain lines in a pipe, JSON lines if asked, a table that fits its terminal."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from loadgen.run import progress

DONE: dict[str, Any] = {
    "index": 3,
    "kind": "window",
    "rate_qps_per_node": 5.21,
    "requests": 246,
    "pending": 0,
    "failed": 0,
    "void": False,
    "ttft_p90_ms": float("inf"),
    "tpot_p90_ms": None,
    "over_ttft_pct": 1.0,
    "over_tpot_pct": None,
    "lag_p99_ms": 0.4,
    "verdict": "within",
}


def test_plain_lines_say_unknown_and_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=False) as show:
        show("window_done", **DONE)
        show("warm", text="warm-up: 4 requests, 4 ok")
        show("quiet")
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert "window 3: 5.210 QPS per node, 246 requests" in first
    assert "p90 TTFT inf ms (1.0 % over), p90 TPOT unknown ms (unknown % over)" in first
    assert second.endswith("warm-up: 4 requests, 4 ok")


def test_json_lines_are_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=True) as show:
        show("window_done", **DONE)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "window_done", **DONE, "ttft_p90_ms": "inf"}
    assert err == ""


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=False, quiet=True) as show:
        show("window_done", **DONE)
        show("warm", text="warm-up")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (140, 50)])
def test_the_screen_fits_its_terminal(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=size[0], height=size[1], force_terminal=True)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    show = progress.LiveScreen()
    with show.live:
        show("prediction", text="the engine model predicts 5.20 [/] [red] " + "and more " * 30)
        for index in range(40):
            show("window_done", **{**DONE, "index": index, "verdict": "over ttft and tpot " * 5})
        lines = show.drawn().plain.splitlines()
    assert len(lines) <= size[1] - 2 and max(map(len, lines)) < size[0]
    assert any(line.startswith(" 39 window") for line in lines) or size[1] < 24
