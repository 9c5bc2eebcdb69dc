"""loadgen/fleet/rows.py: figures of gaps that bounds need, and the queue time from the wire to its metric."""

import math
from array import array

import pyarrow as pa
import pytest

from analysis.rows import metrics
from conf.specs.bounds import Slo
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import EVERY_GAP, Clock, GapRecord, Planned, ServerWords, batch
from loadgen.fleet.sse import EventReader


def exchange(*gaps_us: int, ended: bool = True) -> Exchange:
    found = Exchange(0, 1)
    found.gaps_us = array("i", gaps_us)
    found.end_ns = 1 if ended else None
    return found


def test_bounds_ask_for_their_own_figures_only() -> None:
    usual = GapRecord.from_bounds(Slo("", 2000.0, 100.0), kept=True)
    assert (usual.within, usual.most_ms) == (None, None)
    both = GapRecord.from_bounds(Slo("", 2000.0, None, {"itl_p99": 80.0, "itl_pooled_p95": 50.0}), kept=False)
    assert (both.kept, both.within, both.most_ms) == (False, 0.99, 50.0)


def test_a_quantile_of_its_own_gaps_and_those_over_the_bound() -> None:
    asked = GapRecord(kept=False, within=0.5, most_ms=30.0)
    columns = asked.columns([exchange(10_000, 20_000, 40_000), exchange(), exchange(5, ended=False)], 1.0)
    assert columns["own_itl_us"] == [20_000, None, None]
    assert (columns["gaps"], columns["gaps_over"]) == ([3, 0, None], [1, 0, None])
    assert columns["itl_us"] == [None] * 3
    fast = asked.columns([exchange(10_000, 20_000, 40_000)], 2.0)
    assert (fast["own_itl_us"], fast["gaps_over"]) == ([40_000], [2])


def test_what_nobody_asks_for_is_null() -> None:
    columns = GapRecord(kept=False).columns([exchange(10)], 1.0)
    assert all(values == [None] for values in columns.values())


ANSWER = (
    b'data: {"choices":[{"index":0,"text":" token","finish_reason":"length"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}%s}\n\n'
    b"data: [DONE]\n\n"
)


def answered(metrics_field: bytes) -> Exchange:
    """An exchange whose answer ends with such a field."""
    exchange = Exchange(0, 1, http_status=200, sent_ns=0)
    reader = EventReader(exchange)
    reader.feed(ANSWER % metrics_field)
    exchange.output_at(1_000_000)
    reader.end()
    exchange.judge()
    exchange.end_ns = 2_000_000
    return exchange


def row(exchange: Exchange) -> pa.Table:
    plan = Planned(0, 0, "window", 0, 5, 1)
    return pa.Table.from_batches([batch([(plan, exchange)], Clock(0, 0), 0, EVERY_GAP, ServerWords())])


@pytest.mark.parametrize(("told_ms", "queue_us"), [(b"12.3", 12_300), (b"1500", 1_500_000), (b"0.0004", 0)])
def test_milliseconds_of_the_server_are_microseconds_of_the_row_and_milliseconds_again(
    told_ms: bytes, queue_us: int
) -> None:
    rows = row(answered(b',"metrics":{"queue_time_ms":%s}' % told_ms))
    assert rows["status"].to_pylist() == ["ok"] and rows["queue_us"].to_pylist() == [queue_us]
    assert metrics.queue(rows).tolist() == [queue_us / 1000]


def test_a_server_that_does_not_report_it_has_no_queue_time() -> None:
    rows = row(answered(b""))
    assert rows["queue_us"].to_pylist() == [None] and math.isnan(metrics.queue(rows)[0])
