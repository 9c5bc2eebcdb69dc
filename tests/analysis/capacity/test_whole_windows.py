"""`analysis.capacity.window_counts` and `validity`: which rows are a window's, and which reason voids it."""

from typing import Any

import pytest

from analysis.capacity.rules import WindowEvidence
from analysis.capacity.validity import Verdict, judge_window
from analysis.capacity.window_counts import NS, Window, in_window
from analysis.rows.records import table
from conf.specs.experiment import Slo

MS = 1_000_000
SLO = Slo(ttft_p90_ms=1000.0, tpot_p90_ms=50.0)
WINDOW = Window(0, "window", 10.0, 1, 0, 10 * NS, 55 * NS, 55 * NS)


def rows(changed: dict[str, Any], count: int = 0) -> list[dict[str, Any]]:
    """450 healthy requests, of which the first `count` have other figures."""
    healthy = {
        "window_index": 0,
        "status": "ok",
        "phase": "window",
        "send_offset_ns": MS,
        "output_tokens": 50,
    }
    healthy |= {
        "first_token_offset_ns": 100 * MS,
        "last_token_offset_ns": 900 * MS,
        "end_offset_ns": 901 * MS,
    }
    made = [healthy | {"due_ns": 10 * NS + i * NS // 10} for i in range(450)]
    return [row | changed if i < count else row for i, row in enumerate(made)]


def judged(made: list[dict[str, Any]], **evidence: Any) -> Verdict:
    return judge_window(table(made), WINDOW, SLO, WindowEvidence(**evidence))


def test_what_was_taken_back_before_it_was_due_is_in_no_window() -> None:
    made = rows({"phase": "retracted", "status": "missed"}, 50)
    assert in_window(table(made), WINDOW).num_rows == 400
    assert judged(made).valid


@pytest.mark.parametrize(
    "changed", [{"status": "lost"}, {"status": "truncated", "error_kind": "interrupted"}]
)
def test_a_request_that_ended_with_its_load_actor_voids_the_window(changed: dict[str, str]) -> None:
    verdict = judged(rows(changed, 1))
    assert (verdict.valid, verdict.reason) == (False, "actor_lost")
    lost = next(check for check in verdict.checks if check.name == "lost_actors")
    assert (lost.value, lost.passed) == (1.0, False)


def test_of_several_reasons_the_cause_is_named_and_not_what_follows_from_it() -> None:
    """A lost load actor leaves requests unsent too."""
    made = rows({"status": "missed", "send_offset_ns": None}, 40)
    assert judged(made).reason == "client_limited"
    assert judged(made, lost_actors=["c1"]).reason == "actor_lost"
