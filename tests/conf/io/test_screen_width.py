"""conf.io.screen_width: lines break at words and between columns, and stay whole in a pipe."""

import io
import os
import pty

import pytest

from conf.io import terminal
from conf.io.screen_width import fit

PROSE = "  limited by p90 TPOT <= 100 ms (probability 0.98); bounds: p90 TTFT <= 2000 ms, p90 TPOT <= 100 ms"
TABLE = "\n".join(
    [
        f"{'layout':<14}{'QPS/node':>10}{'95 % interval':>18}{'limit':>9}{'TTFT p90 ms':>14}{'ratio':>24}",
        *(
            f"{name:<14}{qps:>10}{'[3.31, 6.45]':>18}{'TPOT':>9}{784:>14}{'1.00 [1.00, 1.00]':>24}"
            for name, qps in (("dp1_tp8_ep8", 5.26), ("dp2_tp4_ep4", 4.89))
        ),
    ]
)


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_long_lines_break_at_words_and_hang(width: int) -> None:
    first, *more = fit(PROSE, width).split("\n")
    assert first.startswith("  limited") and all(line.startswith("    ") for line in more)
    assert max(map(len, [first, *more])) <= width
    assert " ".join([first, *more]).split() == PROSE.split()


def test_a_comment_stays_a_comment_and_a_long_word_whole() -> None:
    lines = fit("# " + "a word " * 30 + "x" * 200, 80).split("\n")
    assert all(line.startswith("#") for line in lines) and "x" * 200 in lines[-1]


@pytest.mark.parametrize("width", [60, 80])
def test_a_wide_table_is_cut_in_columns(width: int) -> None:
    lines = fit(TABLE, width).split("\n")
    assert max(map(len, lines)) <= width and len(lines) == 6
    heads, rows = lines[:2], [lines[2:4], lines[4:]]
    assert heads[0].startswith("layout") and heads[1].endswith("ratio")
    for row in rows:
        assert len(row[0]) <= len(heads[0]) + 1 and row[1].endswith("1.00 [1.00, 1.00]")
        assert row[1].index("1.00 [") < heads[1].index("ratio") < len(row[1])


def test_what_fits_is_not_touched() -> None:
    assert fit(TABLE, 100) == TABLE and fit(PROSE, 100) == PROSE


def test_a_pipe_gets_whole_lines() -> None:
    piped = io.StringIO()
    terminal.tell(f"{PROSE} {PROSE}\n{TABLE}", piped)
    assert piped.getvalue() == f"{PROSE} {PROSE}\n{TABLE}\n"


def test_a_terminal_gets_its_own_width() -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as theirs_end, os.fdopen(ours, "rb") as screen:
        terminal.tell(PROSE, theirs_end)  # a new terminal tells no width: 80 or less
        shown = screen.read1(4096).decode().splitlines()
    assert len(shown) > 1 and max(map(len, shown)) <= 80
