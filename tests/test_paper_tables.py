"""The paper's experiment is rebuilt as its tables imply, and the shipped constants are those fitted to it."""

import numpy as np
import pytest

from conf.constants import constants
from loadgen.paper import SUBJECTS, Row, Subject, kept, outputs
from tests.benchmarks._paper import FITTED, HELD, READ, SPREAD, halves
from tests.benchmarks.paper_tables import Tables, machine, shipped, told

SUBJECT = {subject.name: subject for subject in SUBJECTS}
LLAMA, QWEN, DEEPSEEK, KIMI = SUBJECT


def row(table: str, concurrency: int, output_tok_s: float | None = None, total_tok_s: float = 1.0) -> Row:
    return Row(table, concurrency, output_tok_s is None, total_tok_s, output_tok_s, 1.0)


@pytest.mark.parametrize(
    ("asked", "requests", "in_flight"),
    [(row("15", 5, 1), 15, 5), (row("14", 200, 1), 300, 200), (row("22", 300), 300, 300)]
    + [(row("22", concurrency), 450, 450) for concurrency in (500, 750, 1000)],
)
def test_a_row_is_a_burst_or_three_waves(asked: Row, requests: int, in_flight: int) -> None:
    assert (asked.requests, asked.in_flight) == (requests, in_flight)


def test_a_quarter_of_deepseeks_answers_run_to_their_limit_and_the_others_end_at_once() -> None:
    asked = outputs(SUBJECT[DEEPSEEK], row("22", 200))
    assert sorted(set(asked.tolist())) == [2, 100]
    assert np.count_nonzero(asked == 100) == 50
    assert asked.reshape(-1, 4)[:, -1].tolist() == [100] * 50


def test_a_rows_own_mean_sets_its_answers() -> None:
    asked = outputs(SUBJECT[LLAMA], row("15", 5, output_tok_s=153, total_tok_s=423))
    assert asked.mean() == pytest.approx(329 * 153 / (423 - 153), abs=0.05)
    assert asked.max() == 200


def test_halves_are_every_second_row_of_a_table_whether_fitted_or_not() -> None:
    rows = [row("14", 10, 1), row("14", 25, 1), *(row("23", each) for each in (150, 200, 300, 500))]
    first, second = halves(rows)
    assert [each.concurrency for each in first] == [10, 150, 300]
    assert [each.concurrency for each in second] == [25, 200, 500]
    assert [each.concurrency for each in kept(SUBJECT[QWEN], first)] == [10, 300]


def test_a_batch_never_touches_more_experts_than_its_tokens_choose() -> None:
    tables = Tables.of(SUBJECT[QWEN])
    beyond = np.log([3.0 if name == SPREAD else 0.5 for name in tables.names])
    assert tables.constants(beyond)[SPREAD] == 1.0


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_shipped_models_hold_what_the_fit_holds(subject: Subject) -> None:
    known = constants(shipped(subject))
    dense = (READ, SPREAD) if "405B" in subject.name else ()
    held = {name: value for name, value in HELD.items() if name not in (*FITTED[subject.name].free, *dense)}
    assert {name: known[name].value for name in held} == held
    assert known[SPREAD].value <= 1.0


@pytest.mark.parametrize(
    ("name", "asked", "total_tok_s", "p99_s"),
    [
        (LLAMA, Row("15", 50, False, 3428, 1296, 7.75), 3381, 7.89),
        (LLAMA, Row("22", 300, True, 13937, None, 9.09), 13960, 9.19),
        (QWEN, Row("14", 50, False, 13489, 2012, 5.09), 13230, 5.13),
        (QWEN, Row("23", 300, True, 37850, None, 10.50), 38541, 10.44),
        (DEEPSEEK, Row("22", 300, True, 12719, None, 7.35), 12439, 7.63),
        (KIMI, Row("17", 50, False, 1632, 193, 52.02), 1614, 52.32),
        (KIMI, Row("23", 300, True, 5820, None, 86.81), 5731, 88.05),
    ],
)
def test_the_shipped_constants_retell_the_tables(
    name: str, asked: Row, total_tok_s: float, p99_s: float
) -> None:
    """Rows of arXiv 2603.10031; beside them what the fit makes of them, to 1 % for the digits shipped."""
    subject = SUBJECT[name]
    found = told(machine(shipped(subject), {}), subject, asked)
    assert found == pytest.approx((total_tok_s, p99_s), rel=0.01)
    assert found == pytest.approx((asked.total_tok_s, asked.p99_s), rel=0.06)
