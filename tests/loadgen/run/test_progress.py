"""What a person sees: plain lines in a pipe, JSON lines when asked, a table that fits its terminal."""

import io
import json
from typing import Any

import pytest
from rich.console import Console

from loadgen.run import progress

DONE: dict[str, Any] = {
    "index": 3,
    "kind": "dwell",
    "rate_qps_per_node": 5.21,
    "requests": 246,
    "ttft_p90_ms": float("inf"),
    "tpot_p90_ms": None,
    "over_ttft_pct": 1.0,
    "over_tpot_pct": None,
    "lag_p99_ms": 0.4,
    "verdict": "within",
}


def test_plain_lines_say_unknown_and_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=False) as show:
        show("segment_done", **DONE)
        show("warm", text="warm-up: 4 requests, 4 ok")
        show("quiet")
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert "dwell 3: 5.210 QPS per node, 246 requests" in first
    assert "p90 TTFT inf ms, p90 TPOT unknown ms" in first
    assert second.endswith("warm-up: 4 requests, 4 ok")


def test_json_lines_are_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=True) as show:
        show("segment_done", **DONE)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "segment_done", **DONE, "ttft_p90_ms": "inf"}
    assert err == ""


def test_the_live_table_keeps_its_newest_rows_in_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), width=140, height=20, force_terminal=True)
    monkeypatch.setattr(progress, "Console", lambda **_: screen)
    show = progress.LiveTable()
    with show.live:
        show("prediction", text="the engine model predicts 5.20 [/] [red]")
        for index in range(40):
            show("segment_done", **{**DONE, "index": index})
        table = show._render()
        assert table.row_count == 20 - progress.OTHER_LINES
        assert str(list(table.columns[0].cells)[-1]) == "39"
        assert str(table.title).endswith("5.20 [/] [red]") and str(table.caption).endswith("[/] [red]")
