"""Text on one line and on a terminal: printable, fitted to its width; stdout has results alone."""

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from conf.io import terminal
from conf.io.one_line import MOST_LETTERS, one_line, plain, printable, reason
from conf.io.terminal import fit
from loadgen.run import progress
from tests.support.runs.live_states import DONE

HOSTILE = ("\x1b[2J", "\x1b]0;t\x07", "\x9b2J", "\u202e", "\u2028", "\x00", "\r", "\ud800")
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


def test_stdout_is_ours_alone() -> None:
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True, cwd=HOME)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ['{"ours": 1}', "afterwards", "and a child"]
    assert {"from Python", "from a child", "from native code"} <= set(done.stderr.splitlines())


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


PROSE = "  limited by p90 TPOT <= 100 ms (probability 0.98); bounds: p90 TTFT <= 2000 ms, p90 TPOT <= 100 ms"


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_long_lines_break_at_words_and_hang(width: int) -> None:
    first, *more = fit(PROSE, width).split("\n")
    assert first.startswith("  limited") and all(line.startswith("    ") for line in more)
    assert max(map(len, [first, *more])) <= width
    assert " ".join([first, *more]).split() == PROSE.split()


def test_a_comment_stays_a_comment_and_a_long_word_whole() -> None:
    lines = fit("# " + "a word " * 30 + "x" * 200, 80).split("\n")
    assert all(line.startswith("#") for line in lines) and "x" * 200 in lines[-1]


def test_a_pipe_gets_whole_lines() -> None:
    piped = io.StringIO()
    terminal.tell(f"{PROSE} {PROSE}\n{PROSE}", piped)
    assert piped.getvalue() == f"{PROSE} {PROSE}\n{PROSE}\n"


def test_a_terminal_gets_its_own_width() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as theirs_end, os.fdopen(ours, "rb") as screen:
        terminal.tell(PROSE, theirs_end)  # a new terminal tells no width: 80 or less
        shown = screen.read1(4096).decode().splitlines()
    assert len(shown) > 1 and max(map(len, shown)) <= 80


@given(st.text())
def test_a_terminal_obeys_nothing(text: str) -> None:
    assert printable(text).isprintable()
    assert one_line(text).isprintable()


def test_escapes_and_line_breaks_become_single_spaces() -> None:
    assert one_line("a\x1b[2J\nb\t\u202ec\r\n") == "a [2J b c"


def test_a_long_text_is_cut_and_says_so() -> None:
    assert one_line("x" * 10**6) == "x" * MOST_LETTERS + " ..."
    assert one_line("word", 4) == "word"


def test_an_exception_that_says_nothing_has_its_type() -> None:
    assert [reason(error) for error in (TimeoutError(), OSError("no\nroom"))] == ["TimeoutError", "no room"]
