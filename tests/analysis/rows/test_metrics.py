"""analysis.rows.metrics: what each latency means, on rows made by hand."""

import numpy as np
import pyarrow as pa
import pytest

from analysis.rows import metrics
from analysis.rows.records import FAILURES, REQUESTS, table
from tests.support.words.words import TABLES

MS = 1_000_000
OK = {
    "status": "ok",
    "due_ns": 5 * MS,
    "send_offset_ns": 2 * MS,
    "first_token_offset_ns": 100 * MS,
    "last_token_offset_ns": 340 * MS,
    "end_offset_ns": 345 * MS,
    "requested_output_tokens": 13,
    "output_tokens": 13,
    "itl_us": [10_000, 230_000],
}
LATENCIES = (metrics.ttft, metrics.ttft_from_send, metrics.tpot, metrics.e2e)


def test_a_complete_answer():
    rows = table([OK])
    assert metrics.send_lag(rows).tolist() == [2.0]
    assert metrics.ttft(rows).tolist() == [100.0]
    assert metrics.ttft_from_send(rows).tolist() == [98.0]
    assert metrics.tpot(rows).tolist() == [20.0]
    assert metrics.e2e(rows).tolist() == [340.0]
    assert metrics.itl(rows).tolist() == [10.0, 230.0]
    assert metrics.queue(table([OK | {"queue_us": 1500}])).tolist() == [1.5]


@pytest.mark.parametrize("status", FAILURES)
def test_every_failure_is_infinitely_late_even_with_all_its_times(status):
    rows = table([OK | {"status": status}])
    assert [latency(rows).tolist() for latency in LATENCIES] == [[np.inf]] * 4
    assert metrics.itl(rows).tolist() == [np.inf] * 12


def test_a_pending_request_is_unknown():
    rows = table([OK | {"status": "pending"}])
    assert all(np.isnan(latency(rows)).all() for latency in LATENCIES)
    assert len(metrics.itl(rows)) == 0


def test_tpot_needs_two_tokens_also_of_a_failure():
    one = {"output_tokens": 1, "requested_output_tokens": 1}
    rows = table([OK | one, OK | one | {"status": "timeout", "output_tokens": None}])
    assert np.isnan(metrics.tpot(rows)).all()
    assert metrics.ttft(rows).tolist() == [100.0, np.inf]


ANSWER = OK | {"output_tokens": 10, "reads": 10}


@pytest.mark.parametrize(("changes", "is_burst"), TABLES["answers that came in a burst"])
def test_an_answer_that_came_in_one_or_two_reads_is_a_burst(changes, is_burst):
    assert metrics.burst(table([ANSWER, ANSWER | changes])).tolist() == [False, is_burst]


def test_the_tpot_of_a_burst_is_unknown_and_of_a_failed_one_still_infinite():
    rows = table([ANSWER, ANSWER | {"reads": 2}, ANSWER | {"reads": 2, "status": "timeout"}])
    np.testing.assert_allclose(metrics.tpot(rows), [240 / 9, np.nan, np.inf])
    assert metrics.ttft(rows).tolist() == [100.0, 100.0, np.inf]
    assert metrics.e2e(rows).tolist() == [340.0, 340.0, np.inf]


def test_send_lag_blames_the_client_only():
    late = [
        ("missed", None), ("missed", 3 * MS), ("lost", None), ("http_error", 3 * MS), ("conn_error", None),
        ("pending", None),
    ]  # fmt: skip
    rows = table([OK | {"status": status, "send_offset_ns": sent} for status, sent in late])
    np.testing.assert_array_equal(metrics.send_lag(rows), [np.inf, np.inf, np.inf, 3.0, np.nan, np.nan])


def test_where_the_engine_told_its_own_time_only_its_part_is_multiplied():
    """A clock of 5: 40 ms to the first token and 300 ms to the last in the engine, 12 ms real outside."""
    told = OK | {
        "time_scale": 5.0,
        "engine_first_token_ns": 40 * MS,
        "engine_last_token_ns": 300 * MS,
        "first_token_offset_ns": 100 * MS,
        "last_token_offset_ns": 360 * MS,
        "send_offset_ns": 10 * MS,
    }
    assert metrics.path(table([told, OK])).tolist() == pytest.approx([12.0, np.nan], nan_ok=True)
    assert metrics.send_lag(table([told])).tolist() == [2.0]
    assert metrics.ttft(table([told, OK])).tolist() == [52.0, 100.0]
    assert metrics.ttft_from_send(table([told])).tolist() == [50.0]
    assert metrics.e2e(table([told])).tolist() == [312.0]
    assert metrics.tpot(table([told])).tolist() == pytest.approx([260 / 12])


@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0])
def test_tokens_that_came_with_a_late_first_read_change_no_pace_on_a_fast_clock(scale):
    """20 tokens of 10 ms in the engine; the first read is late by two of them, and real time is scaled."""
    late = OK | {
        "time_scale": scale,
        "output_tokens": 20,
        "reads": 18,
        "first_read_tokens": 3,
        "engine_first_token_ns": 40 * MS,
        "engine_last_token_ns": 230 * MS,
        "first_token_offset_ns": 60 * MS,
        "last_token_offset_ns": 230 * MS,
    }
    assert metrics.tpot(table([late])).tolist() == pytest.approx([10.0])


@pytest.mark.parametrize(
    ("counts", "tpot"),
    [
        ({"first_read_tokens": 2}, 240 / 11),
        ({"first_read_tokens": 4}, 240 / 9),
        ({"first_read_tokens": 5}, np.nan),  # held back: more than four, and more than a quarter
        ({"streamed_tokens": 11, "first_read_tokens": 1}, 24.0),
        ({"streamed_tokens": 9, "first_read_tokens": 1}, np.nan),  # hides more than a quarter
        ({"last_token_offset_ns": 103 * MS}, np.nan),  # faster than any engine
    ],
)
def test_tpot_counts_the_streamed_tokens_after_the_first_read(counts, tpot):
    rows = table([OK | {"reads": 12} | counts])
    np.testing.assert_allclose(metrics.tpot(rows), [tpot])


def test_unrecorded_gaps_are_unknown_not_zero():
    assert len(metrics.itl(table([OK | {"itl_us": None}, OK | {"itl_us": None, "status": "timeout"}]))) == 0


def test_an_empty_table_and_a_chunked_one():
    assert [len(latency(REQUESTS.empty_table())) for latency in LATENCIES] == [0] * 4
    assert len(metrics.itl(REQUESTS.empty_table())) == 0
    chunked = pa.concat_tables([table([OK]), table([OK | {"status": "lost"}])])
    assert metrics.ttft(chunked).tolist() == [100.0, np.inf]


def test_numbers_are_floats_and_one_that_no_float_knows_is_refused():
    rows = pa.table({"whole": pa.chunked_array([[1, None], [2**53]], pa.int64()), "parts": [0.5, None, 2.0]})
    for name, known in (("whole", [1.0, np.nan, 2.0**53]), ("parts", [0.5, np.nan, 2.0])):
        assert metrics.numbers(rows, name).dtype == np.float64
        np.testing.assert_array_equal(metrics.numbers(rows, name), known)
    with pytest.raises(pa.ArrowInvalid):
        metrics.numbers(pa.table({"whole": [2**53 + 1]}), "whole")
