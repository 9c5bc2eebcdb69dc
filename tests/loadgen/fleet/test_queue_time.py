"""The queue time from the wire to its metric: `fleet.sse`, `fleet.rows` and `analysis.rows.metrics`."""

import math

import pyarrow as pa
import pytest

from analysis.rows import metrics
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import EVERY_GAP, Clock, Planned, ServerWords, batch
from loadgen.fleet.sse import EventReader

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
