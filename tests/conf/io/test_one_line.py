"""conf.io.one_line: what a terminal would obey never gets there."""

from hypothesis import given
from hypothesis import strategies as st

from conf.io.one_line import MOST_LETTERS, one_line, printable, reason


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
    assert reason(TimeoutError()) == "TimeoutError"
    assert reason(OSError("no\nroom")) == "no room"
