"""analysis.live.followed: a folder that grows, is replaced, is damaged, or is a stranger's."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import __main__ as reading
from analysis.live import followed as following
from analysis.live.followed import events_of, live, look
from analysis.live.state import FILE, LiveState
from analysis.results.json_border import to_tree
from analysis.results.runs import RunError
from conf import ConfigError
from tests.support.runs.golden import GOLDEN, sweep_json, unsealed
from tests.support.runs.live_states import LINES, RUNNING

ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose load has not begun."""
    folder = tmp_path / "golden_run"
    folder.mkdir()
    shutil.copy(GOLDEN / "manifest.json", folder)
    (folder / "events.jsonl").touch()
    return folder


def write(run: Path, *lines: bytes) -> None:
    with (run / "events.jsonl").open("ab") as file:
        file.write(b"".join(lines))


def end(run: Path) -> None:
    for name in ("sweep.json", "config.yaml", "windows.parquet"):
        shutil.copy(GOLDEN / name, run)
    write(run, *(line for line in LINES if b'"event": "end"' in line))


def test_a_run_that_has_ended_is_there_at_once() -> None:
    state = look(GOLDEN)
    assert state.ending and state.ending.exit_code == 0
    assert state.ending.text.startswith("SIMULATED, VALID  3.32 QPS per node") and state.ending.report is None
    assert (state.run_id, state.verb) == ("golden_run", "sweep")
    assert len(state.windows) == 8 and state.now is None


def test_a_growing_log_gives_the_states_of_its_lines_however_it_is_cut(run: Path) -> None:
    text = b"".join(line for line in LINES if b'"event": "end"' not in line)
    for start in range(0, len(text), 7919):
        write(run, text[start : start + 7919])
        state = look(run)
    assert len(state.windows) == 8 and state.ending is None


def test_the_running_window_comes_from_its_own_file_until_the_end(run: Path) -> None:
    write(run, *LINES[:23])
    (run / FILE).write_text(json.dumps(to_tree(RUNNING)))
    assert look(run).now is None, "it is the file of another window"
    now = replace(RUNNING, index=7)
    (run / FILE).write_text(json.dumps(to_tree(now)))
    assert look(run).now == now
    write(run, b'{"event": "told", "text": "anything"}\n')
    assert look(run).now == now
    write(run, LINES[23])
    assert look(run).now is None
    write(run, b'{"event": "window", "index": 7}\n')
    (run / FILE).write_text('{"index": "damaged')
    assert look(run).now is None


def test_the_end_and_then_the_report_are_noticed(run: Path) -> None:
    write(run, *(line for line in LINES if b'"event": "end"' not in line))
    assert look(run).ending is None
    shutil.copy(GOLDEN / "sweep.json", run)
    assert look(run).ending is None, "the log has not ended: the run is being resumed"
    end(run)
    unsealed(run)
    state = look(run)
    assert state.ending and state.ending.exit_code == 0
    (run / "report.html").touch()
    later = look(run)
    assert later.ending and later.ending.report == str(run / "report.html")
    write(run, b'{"event": "warm", "text": "resumed"}\n')
    assert look(run).ending is None


def test_a_log_that_is_replaced_is_read_anew(run: Path) -> None:
    write(run, *LINES)
    assert len(look(run).windows) == 8
    (run / "other").write_bytes(b'{"event": "warm", "text": "another run"}\n')
    (run / "other").replace(run / "events.jsonl")
    assert look(run).log == ("another run",)
    (run / "events.jsonl").write_bytes(b"")
    assert look(run).log == ()


def test_damaged_lines_are_skipped(run: Path) -> None:
    bad = (
        b"\n",
        b"{",
        b"\xff\xfe\n",
        b"[1]\n",
        b'{"event": 7}\n',
        b'{"event": "window_done", "index": "x"}\n',
        b"[" * 200_000 + b"\n",
        b'{"event": "x", "n": 1' + b"0" * 5000 + b"}\n",
        b'{"event": "window_so_far"}\n',
        b'{"event": "window_done", "index": 0, "requests": 1e999}\n',
    )
    write(run, *bad, b"\n", *LINES[:6])
    state = look(run)
    assert state.log[-1] == json.loads(LINES[5])["text"] and not state.windows


def test_a_log_takes_no_more_than_its_bounds(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "MOST_LINE", 100)
    monkeypatch.setattr(following, "READ_BYTES", 290)
    write(run, b'{"event": "old", "text": "old"}\n', b"x" * 200, b'\n{"event": "new", "text": "new"}\n{"ev')
    assert look(run).log == ("old", "new")
    write(run, b'ent": "last", "text": "last"}\n')
    assert look(run).log == ("new", "last"), "the first line is cut"


def test_a_strangers_texts_are_short_and_printable_and_its_trees_small() -> None:
    text = "\u202eevil\x1b[31m" + "y" * 9999
    deep: Any = "z"
    for _ in range(50):
        deep = [deep]
    tree = {"event": "x", "text": text, "list": [1] * 9999, "deep": deep}
    (event,) = events_of(f"{json.dumps(tree)}\n".encode())
    assert event["text"].isprintable() and len(event["text"]) < 600
    assert len(event["list"]) == following.MOST_MEMBERS
    assert len(json.dumps(event)) < 5000


def test_links_and_pipes_are_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"event": "x", "text": "secret"}\n')
    (run / "events.jsonl").unlink()
    (run / "events.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(run / FILE)
    assert look(run).log == ()


def test_the_nodes_of_a_run_are_those_of_its_configuration(run: Path) -> None:
    assert look(run).nodes is None
    shutil.copy(GOLDEN / "config.yaml", run)
    assert look(run).nodes == 1


def test_another_run_of_a_study_starts_anew_and_the_log_goes_on() -> None:
    seen = LiveState()
    for line in LINES:
        seen = seen.after(json.loads(line))
    other = seen.after({"event": "run", "run_id": "b", "verb": "compare", "nodes": 2})
    assert (other.run_id, other.verb, other.nodes) == ("b", "compare", 2)
    assert not other.windows and not other.beliefs and other.log == seen.log


def study(folder: Path, exit_code: int | None, *names: str) -> Path:
    study = {"study": "repeats", "experiment": sweep_json(GOLDEN)["experiment"]}
    tree = study | {"exit_code": exit_code, "names": names, "parts": []}
    (folder / "study.json").write_text(json.dumps(tree))
    return folder


def test_of_a_study_the_newest_run_that_goes_on_is_shown(tmp_path: Path, run: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "first")
    os.utime(run / "events.jsonl", (2e9, 2e9))
    os.utime(tmp_path / "first" / "events.jsonl", (3e9, 3e9))
    state = look(study(tmp_path, None, "first", "golden_run", "not_begun"))
    assert [(part.name, part.ended, part.shown) for part in state.parts] == [
        ("first", True, False),
        ("golden_run", False, True),
    ]
    assert state.ending is None
    assert state.run_id == f"{tmp_path.name}/golden_run"
    end(run)
    study(tmp_path, 4, "first", "golden_run")
    last = look(tmp_path)
    assert last.ending and last.ending.exit_code == 4


def test_a_study_whose_runs_have_not_begun_says_so_and_one_that_holds_itself_ends(tmp_path: Path) -> None:
    state = look(study(tmp_path, None, "a", "b"))
    assert "no run of this study has begun" in state.phase and not state.parts
    (tmp_path / "a").symlink_to(tmp_path)
    assert not look(tmp_path).parts


@pytest.mark.parametrize("name", ["nowhere", "empty", "file"])
def test_a_folder_of_nothing_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="is no folder of a run or a study"):
        live(tmp_path / name, "0")


def test_a_result_that_is_broken_is_said_in_one_line(run: Path) -> None:
    end(run)
    (run / "sweep.json").write_text('{"exit_code": 0, "valid": [], "experiment": 3}')
    state = look(run)
    assert state.ending and state.ending.text.startswith("the result cannot be read: ")
    assert "\n" not in state.ending.text


def test_the_verb_serves_until_it_is_told_to_stop(capsys: pytest.CaptureFixture[str]) -> None:
    stop = threading.Event()
    stop.set()
    live(GOLDEN, "0", stop)
    assert "live view: http://127.0.0.1:" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="--port eighty"):
        live(GOLDEN, "eighty", stop)


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "analysis", "live", str(GOLDEN)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr and "live view: http://127.0.0.1:" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    assert process.returncode == 130
    assert reading.main(["live", str(tmp_path / "nowhere")]) == 2
    assert reading.main(["live", str(GOLDEN), "--port", "1e9"]) == 2
