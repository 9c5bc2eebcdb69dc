"""loadgen/drive/service_loss.py: dead services are told from slow, choosy and starting ones."""

from typing import Any

import pyarrow as pa

from analysis.rows import records
from loadgen.drive.service_loss import death, heard_ns, silent
from loadgen.traffic.schedule import NS

REFUSED = {"status": "conn_error", "error_kind": "ConnectionRefusedError", "error": "line one\nline two"}
ANSWERED = {"status": "ok", "first_token_offset_ns": NS, "last_token_offset_ns": 2 * NS}
STREAMS = {"status": "pending", "first_token_offset_ns": NS, "last_token_offset_ns": 9 * NS}
WAITS = {"status": "pending"}
TIMED_OUT = {"status": "timeout", "error_kind": "deadline"}


def rows(*groups: tuple[int, float, dict[str, Any]]) -> pa.Table:
    """Groups of (count, due in seconds, what became of them)."""
    made = [{"due_ns": int(due_s * NS), **end} for count, due_s, end in groups for _ in range(count)]
    return pa.Table.from_pylist(made, schema=records.PROGRESS)


def test_a_service_that_died_lately_is_dead_however_much_it_answered_before() -> None:
    told = death(rows((500, 0, ANSWERED), (20, 30, REFUSED)), 35 * NS)
    assert told == "20 of the newest 20 requests failed: ConnectionRefusedError line one line two"


def test_a_service_that_still_speaks_is_alive() -> None:
    assert death(rows((20, 28, STREAMS), (20, 30, REFUSED)), 35 * NS) is None
    assert death(rows((20, 0, ANSWERED)), 35 * NS) is None


def test_requests_in_flight_speak_for_a_service_that_is_starting() -> None:
    assert death(rows((5, 30, REFUSED), (1995, 30, WAITS)), 31 * NS) is None


def test_a_few_failures_are_no_death_but_for_the_first_request_of_all() -> None:
    assert death(rows((4, 30, REFUSED)), 31 * NS) is None
    assert death(rows((4, 30, REFUSED)), 31 * NS, least=1) is not None
    assert death(rows(), 31 * NS) is None


def test_what_never_left_the_client_says_nothing_of_the_service() -> None:
    assert death(rows((50, 30, {"status": "missed"}), (50, 30, {"status": "lost"})), 31 * NS) is None


def test_a_slow_rate_is_judged_by_its_last_requests() -> None:
    assert death(rows((9, 0, ANSWERED), *((1, 20 * n, REFUSED) for n in range(1, 6))), 101 * NS) is not None


def test_silence_is_a_timeout_without_a_token() -> None:
    table = rows((3, 0, TIMED_OUT), (4, 1, WAITS), (5, 2, STREAMS))
    assert int(silent(table).sum()) == 3
    assert heard_ns(table) == 11 * NS and heard_ns(rows((3, 0, WAITS))) == float("-inf")


def test_a_token_since_the_first_of_the_newest_failures_shows_a_service_that_lives() -> None:
    """All of the newest requests fail, and an older one still streams until a second after they were due."""
    assert death(rows((1, 22, STREAMS), (20, 30, REFUSED)), 35 * NS) is None
    assert death(rows((1, 20, STREAMS), (20, 30, REFUSED)), 35 * NS) is not None
