"""analysis.views.shown: one answer as text, as HTML and as a table."""

import pytest

from analysis import load_run
from analysis.views.shown import MOST_LETTERS, Answer, Link, Table, table_lines, text
from tests.support.runs.golden import GOLDEN

ROWS = (("a", "1.5", "ok"), (Link("b", "b/report.html"), "12", "failed: <b>"))
TABLE = Table("Parts", ("part", "QPS", "state"), ROWS, note="Two parts.", state=2)
ANSWER = Answer(
    "VALID", "good", "3 QPS <per> node", (("limited by", "p90 & p99"),), (TABLE,), ("to go on: x",)
)


def test_the_text_has_the_headline_first_and_the_notes_last() -> None:
    assert text(ANSWER).splitlines() == [
        "VALID  3 QPS <per> node",
        "  limited by: p90 & p99",
        "  Parts",
        "    part  QPS  state",
        "    a     1.5  ok",
        "    b      12  failed: <b>",
        "  Two parts.",
        "  to go on: x",
    ]


def test_a_narrow_screen_wraps_facts_and_keeps_every_word() -> None:
    long = Answer("VALID", "good", "x", (("why", " ".join(["word"] * 40)),))
    lines = text(long, width=40).splitlines()
    assert all(len(line) <= 40 for line in lines) and text(long, width=40).count("word") == 40


def test_html_escapes_the_words_of_others_and_cuts_what_is_absurdly_long() -> None:
    html = ANSWER._repr_html_()
    assert "3 QPS &lt;per&gt; node" in html and "p90 &amp; p99" in html and "failed: &lt;b&gt;" in html
    assert '<a href="b/report.html">b</a>' in html and "To go on: x" in html
    whole = Answer("VALID", "good", "x" * (MOST_LETTERS + 1))._repr_html_()
    assert "cut here" in whole and len(whole) < MOST_LETTERS + 2000


def test_a_table_is_arrow_under_its_heads() -> None:
    assert TABLE.to_arrow().to_pydict() == {
        "part": ["a", "b"],
        "QPS": ["1.5", "12"],
        "state": ["ok", "failed: <b>"],
    }
    assert Table("", ("a", "b"), ()).to_arrow().num_rows == 0


def test_markup_of_the_terminal_in_a_cell_stays_text() -> None:
    (_, line) = table_lines(Table("", ("a",), (("[bold]x[/bold]",),)))
    assert line.strip() == "[bold]x[/bold]"


@pytest.mark.parametrize("word", ["SIMULATED, VALID", "certified", "to quote", "limited by", "lost_actors"])
def test_a_run_says_the_same_on_the_screen_and_in_a_notebook(word: str) -> None:
    answer = load_run(GOLDEN).answer()
    assert word in str(answer) and word in answer._repr_html_()
