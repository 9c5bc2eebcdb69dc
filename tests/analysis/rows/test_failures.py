"""analysis.rows.failures: what is counted by kind, how one line says it, and the remedy of a kind."""

import doctest

import pytest

from analysis.rows import failures, records
from tests.support.words.words import TABLES


def rows(*kinds: tuple[str, str | None], phase: str = "window") -> list[dict[str, object]]:
    return [{"status": status, "error_kind": kind, "phase": phase} for status, kind in kinds]


def test_failures_are_counted_by_kind_without_what_is_no_failure() -> None:
    made = [
        *rows(*[("http_error", "429")] * 3, ("truncated", "no_usage"), ("lost", None)),
        *rows(("ok", None), ("pending", None)),
        *rows(("missed", "retracted"), phase="retracted"),
    ]
    counts = failures.kinds(records.table(made))
    assert list(counts.items()) == [("http_error 429", 3), ("lost", 1), ("truncated no_usage", 1)]
    assert failures.kinds(records.table([])) == {}


def test_one_line_names_the_most_frequent_kinds_and_sums_the_others_up() -> None:
    assert doctest.testmod(failures).failed == 0
    assert failures.line({}, 7) == ""
    many = failures.line({f"conn_error {name}": count for count, name in enumerate("abcdef", 1)}, 50)
    assert many.startswith("failed 21 of 50: 6 x conn_error f, ") and many.endswith(", 3 of other kinds")
    assert failures.line({"http_error 529": 1, "http_error ²": 1}, 2).endswith("529, 1 x http_error ²")


@pytest.mark.parametrize(("kind", "advice"), TABLES["remedies of failures"])
def test_every_kind_has_a_remedy(kind: str, advice: str) -> None:
    assert advice in failures.remedy(kind)
