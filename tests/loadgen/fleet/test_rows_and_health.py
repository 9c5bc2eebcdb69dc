"""loadgen/fleet/worker_log.py, rows.py, arrow_stream.py, process.py: rows, shards, health and limits."""

import asyncio
import dataclasses
import errno
import fcntl
import gc
import math
import os
import subprocess
import sys
import time
from array import array
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis.capacity.window_counts import NS, Window
from analysis.rows import metrics, records
from analysis.rows.parquet import BoundedWords
from analysis.rows.records import CLIENTS
from conf.specs.bounds import Slo
from loadgen.drive.load_feed import health_of
from loadgen.fleet import process, worker_log
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.process import NO_LIMIT, SPARE_FILES, Limits, WatchedProcess
from loadgen.fleet.rows import Clock, GapRecord, batch
from loadgen.fleet.worker_log import HealthSampler, RequestLog
from loadgen.traffic.schedule import Planned
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import Disk, on_disk
from tests.support.servers.plans import client_plan


def reported(log: RequestLog, received: bool) -> list[int]:
    rows, _ = log.take(received)
    return [seq for batch in rows for seq in batch["seq"].to_pylist()]


def test_a_report_is_repeated_until_it_was_received(tmp_path: Path) -> None:
    health = ArrowStream(tmp_path / "health.arrow", records.CLIENTS)
    log = RequestLog(0, client_plan([]), ArrowStream(tmp_path / "shard.arrow"), health)
    log.start(Clock(0, 0))

    def end(seq: int) -> None:
        log.add(Exchange(Planned(seq, 0, "window", 0, 1, 1), end_ns=1))

    end(0)
    assert reported(log, received=True) == [0]
    end(1)
    assert reported(log, received=False) == [0, 1]
    assert reported(log, received=False) == [0, 1]
    end(2)
    assert reported(log, received=True) == [2]
    assert reported(log, received=True) == []


def test_a_second_counts_what_happened_in_it_and_no_more() -> None:
    sampler = HealthSampler(3, Clock(time.monotonic_ns(), 1_000_000_000))
    sampler.second.lags_ns += [1_000_000, 3_000_000, 2_000_000]
    sampler.second.missed, sampler.second.reads, sampler.second.events = 1, 10, 12
    for late_ns, in_flight in ((5_000_000, 4), (-1_000, 2)):
        sampler.woke(late_ns, in_flight)
    first, second = sampler.sample(), sampler.sample()
    counted = {name: first[name] for name in ("client_id", "sends", "missed", "in_flight", "reads", "events")}
    assert counted == {"client_id": 3, "sends": 3, "missed": 1, "in_flight": 2, "reads": 10, "events": 12}
    assert (first["lag_p50_ms"], first["lag_max_ms"], first["stall_ms"]) == (2.0, 3.0, 5.0)
    assert first["in_flight_mean"] == 3.0 and 0 <= first["cpu_share"] < 2
    assert first["at"] == (1_000_000_000 + first["clock_ns"]) // 1000
    assert (second["sends"], second["lag_p99_ms"], second["in_flight"]) == (0, None, None)
    assert pa.Table.from_pylist([first, second], schema=CLIENTS).num_rows == 2


@pytest.mark.slow
def test_pauses_of_the_garbage_collector_are_seen_while_watched() -> None:
    sampler = HealthSampler(0, Clock(0, 0))
    with sampler.watch_gc():
        gc.collect()
    gc.collect()
    row = sampler.sample()
    assert row["gc_pauses"] == 1 and row["gc_ms"] > 0


@pytest.mark.parametrize("text", [None, "", "12 34", "a b c"])
def test_a_kernel_that_does_not_tell_is_unknown(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    path = tmp_path / "schedstat"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(worker_log, "SCHEDSTAT", path)
    assert HealthSampler(0, Clock(0, 0)).sample()["run_share"] is None


def test_the_share_of_the_wanted_core(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "schedstat"
    monkeypatch.setattr(worker_log, "SCHEDSTAT", path)
    path.write_text("100 50 7")
    sampler = HealthSampler(0, Clock(0, 0))
    path.write_text("400 150 9")
    assert sampler.sample()["run_share"] == 300 / 400


WINDOW = Window(0, "window", 1.0, 1, 0, 10 * NS, 30 * NS, 30 * NS)


def beat(client_id: int, second: float, **figures: Any) -> dict[str, Any]:
    row = {"cpu_share": 0.2, "run_share": 0.9, "stall_ms": 1.0, "in_flight_mean": 5.0, "span_s": 1.0}
    return {"client_id": client_id, "clock_ns": int(second * NS), **row, **figures}


def test_a_window_has_the_seconds_that_lie_in_it() -> None:
    calm = [beat(client, second) for client in (0, 1) for second in range(11, 31)]
    beats = [beat(0, 5, cpu_share=1.0, stall_ms=900.0), beat(1, 33, stall_ms=900.0), *calm]
    beats[2] |= {"stall_ms": 40.0, "cpu_share": 0.6}
    health = health_of(beats, WINDOW)
    first = {"cpu_share": 0.22, "run_share": 0.9, "stall_ms": 40.0}
    assert health.health["client-00"] == pytest.approx(first)
    assert health.health["client-01"]["stall_ms"] == 1.0
    assert health.in_flight_mean == pytest.approx(10.0)


def test_what_was_not_seen_of_a_window_is_unknown() -> None:
    assert health_of([], WINDOW).in_flight_mean is None and health_of([], WINDOW).health is None
    half = [beat(0, second, run_share=None) for second in range(11, 21)]
    health = health_of(half, WINDOW, ["load actor 1 (killed)"])
    assert health.in_flight_mean is None, "half of the seconds say nothing of the mean"
    assert health.health == {"client-00": pytest.approx({"cpu_share": 0.2, "stall_ms": 1.0})}
    assert health.lost_actors == ("load actor 1 (killed)",)


def exchange(*gaps_us: int, ended: bool = True) -> Exchange:
    result = Exchange(Planned(0, 0, "window", 0, 5, 1))
    result.gaps_us = array("i", gaps_us)
    result.end_ns = 1 if ended else None
    return result


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


@pytest.mark.parametrize(
    ("told_ms", "queue_us"), [(12.3, 12_300), (1500.0, 1_500_000), (0.0004, 0), (None, None)]
)
def test_milliseconds_of_the_server_are_microseconds_of_the_row_and_milliseconds_again(
    told_ms: float | None, queue_us: int | None
) -> None:
    answered = exchange()
    answered.status, answered.queue_ms = "ok", told_ms
    rows = pa.Table.from_batches([batch([answered], Clock(0, 0), 0, GapRecord(), defaultdict(BoundedWords))])
    assert rows["queue_us"].to_pylist() == [queue_us]
    (queue_ms,) = metrics.queue(rows)
    assert math.isnan(queue_ms) if queue_us is None else queue_ms == queue_us / 1000


ROOM = Limits(soft_files=20_000, hard_files=20_000, open_files=36, ports=28_232)


@pytest.mark.parametrize(
    ("limits", "endpoints", "sharing", "most"),
    [
        (ROOM, 1, 1, 20_000 - 36 - SPARE_FILES),
        (replace(ROOM, soft_files=1024), 8, 1, 1024 - 36 - SPARE_FILES),
        (replace(ROOM, soft_files=NO_LIMIT), 1, 1, 28_232),
        (replace(ROOM, soft_files=NO_LIMIT), 2, 1, 56_464),
        (replace(ROOM, soft_files=NO_LIMIT), 2, 4, 14_116),
        (replace(ROOM, soft_files=90), 1, 1, 0),
    ],
)
def test_the_smaller_limit_counts(limits: Limits, endpoints: int, sharing: int, most: int) -> None:
    assert limits.shortage(endpoints, most, sharing) is None
    assert str(most) in str(limits.shortage(endpoints, most + 1, sharing))


def test_a_shortage_names_the_limit_and_the_remedy_in_one_line() -> None:
    files = str(ROOM.shortage(8, 30_000))
    assert "19900 of 30000" in files and "`ulimit -n`" in files and "20000" in files and "actors" in files
    ports = str(replace(ROOM, soft_files=NO_LIMIT).shortage(1, 30_000, sharing=2))
    assert "14116 of 30000" in ports and "net.ipv4.ip_local_port_range" in ports and "target.urls" in ports
    assert "shared by 2" in ports
    assert "\n" not in files + ports


def test_the_soft_limit_is_lifted_to_the_hard_one_and_open_files_are_counted() -> None:
    story = """
import resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
from loadgen.fleet import process
before = process.limits()
process.raise_files()
kept = [socket.socket() for _ in range(150)]
after = process.limits()
print(before.soft_files, before.hard_files, after.soft_files, after.open_files - before.open_files)
"""
    output = subprocess.run([sys.executable, "-c", story], capture_output=True, text=True, check=True)
    assert output.stdout.split() == ["100", "300", "300", "150"]


def test_what_the_machine_does_not_tell_is_no_limit(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(process, "PORT_RANGE", tmp_path / "absent")
    assert process.limits().ports == NO_LIMIT
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(process, "PORT_RANGE", tmp_path / "range")
    assert process.limits().ports == 28_232


async def ended_within(other: WatchedProcess, kill: subprocess.Popen[bytes] | None = None) -> bool:
    gone = asyncio.Event()
    assert other.watch(gone.set)
    if kill is not None:
        await asyncio.sleep(0.05)
        assert not gone.is_set()
        kill.kill()
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    return True


def test_a_death_is_told_once_it_happens_and_not_before() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    other = dataclasses.replace(WatchedProcess.own(), pid=child.pid)
    assert asyncio.run(ended_within(other, child))
    child.wait()
    assert asyncio.run(ended_within(other)), "one that is dead already is told too"


def test_a_process_elsewhere_cannot_be_watched() -> None:
    assert WatchedProcess.own().pid == os.getpid()
    for where in (("another boot", WatchedProcess.own().where[1]), ("", "")):
        assert not WatchedProcess(1, where).watch(lambda: pytest.fail("nothing died"))


def shard_row(seq: int) -> pa.RecordBatch:
    """One shard_row as the worker hands it to its shard."""
    whole = {"seq": seq, "due_ns": seq, "status": "ok", "itl_us": [1, 2]}
    return pa.RecordBatch.from_pylist([whole], schema=records.SHARD)


def seqs(path: Path) -> list[int]:
    return list(records.read_shard(path)["seq"].to_pylist())


def test_a_full_disk_neither_cuts_nor_doubles_rows(tmp_path: Path) -> None:
    """Only a failed write moves in the file: on a network file system that is a round trip to wait for."""
    shard, disk = on_disk(tmp_path / "s.arrow")

    def append(*numbers: int) -> None:
        for seq in numbers:
            shard.append(shard_row(seq))

    append(*range(10))
    shard.flush()
    assert disk.moves == 0
    disk.room_bytes = 300
    append(*range(10, 20))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            shard.flush()
        assert seqs(shard.path) == list(range(10))
    disk.room_bytes = 1 << 30
    append(*range(20, 30))
    shard.flush()
    moves = disk.moves
    append(30)
    shard.flush()
    assert disk.moves == moves > 0
    disk.room_bytes = 0
    append(31)
    with pytest.raises(OSError, match="No space"):
        shard.close()
    assert seqs(shard.path) == list(range(31))
    assert disk.closed


def test_a_disk_that_is_full_from_the_start_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "room_bytes", 10)
    with pytest.raises(OSError, match="No space") as full:
        on_disk(tmp_path / "s.arrow")
    ArrowStream(tmp_path / "s.arrow").close()
    assert full.value.errno == errno.ENOSPC, "its traceback holds the file, which must be closed all the same"
    assert seqs(tmp_path / "s.arrow") == []


def test_a_second_writer_is_refused_and_destroys_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.arrow"
    shard = ArrowStream(path)
    shard.append(shard_row(0))
    shard.flush()
    with pytest.raises(BlockingIOError):
        ArrowStream(path)
    shard.append(shard_row(1))
    shard.close()
    assert seqs(path) == [0, 1]
    ArrowStream(path).close()
    assert seqs(path) == [], "what another writer left is gone"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_still_takes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    shard = ArrowStream(tmp_path / "s.arrow")
    shard.append(shard_row(0))
    shard.close()
    assert seqs(shard.path) == [0]


def test_a_shard_that_was_fetched_goes_but_not_the_copy_that_took_its_name(tmp_path: Path) -> None:
    gone, replaced = ArrowStream(tmp_path / "gone.arrow"), ArrowStream(tmp_path / "replaced.arrow")
    for shard in (gone, replaced):
        shard.append(shard_row(0))
        shard.close()
    copy = tmp_path / "copy"
    copy.write_bytes(replaced.path.read_bytes())
    copy.replace(replaced.path)
    for shard in (gone, gone, replaced):
        shard.delete()
    assert not gone.path.exists() and seqs(replaced.path) == [0]
