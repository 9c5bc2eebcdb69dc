"""loadgen/fleet/worker_log.py: no row is lost with a report that the driver never got."""

from pathlib import Path

from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import Clock, Planned
from loadgen.fleet.worker_log import RequestLog
from tests.support.servers.plans import client_plan


def reported(log: RequestLog, received: bool) -> list[int]:
    rows, _ = log.take(received)
    return [seq for batch in rows for seq in batch["seq"].to_pylist()]


def test_a_report_is_repeated_until_it_was_received(tmp_path: Path) -> None:
    log = RequestLog(0, client_plan([]), ArrowStream(tmp_path / "shard.arrow"), None)
    log.start(Clock(0, 0))

    def end(seq: int) -> None:
        exchange = Exchange(seq, 1)
        exchange.end_ns = 1
        log.add((Planned(seq, 0, "window", 0, 1, 1), exchange))

    end(0)
    assert reported(log, received=True) == [0]
    end(1)
    assert reported(log, received=False) == [0, 1]
    assert reported(log, received=False) == [0, 1]
    end(2)
    assert reported(log, received=True) == [2]
    assert reported(log, received=True) == []
