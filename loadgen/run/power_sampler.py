"""Samples the power of the nodes about once a second into an Arrow IPC stream, in a thread of its own.

A reading may be missing, but the run goes on.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import pyarrow as pa

from analysis.rows import time_series
from conf.io.one_line import one_line
from loadgen.fleet.arrow_stream import ArrowStream

PERIOD_S = 1.0
IDLE_S = 10.0
"""Time at rest before the load (our choice): a GPU is at its idle clocks within a second or two."""
FIRST_S = 20.0
"""Longest wait until every node has answered or one has reported its power: a tool may take 15 s."""
WORD_CHARS = 200
FIGURES = ("gpu_watts", "node_watts", "source")


class PowerSource(Protocol):
    """A source of power readings of nodes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes."""

    def read(self) -> Sequence[Mapping[str, Any]]:
        """The readings available now: columns of `time_series.POWER` but time and `idle`; returns at once."""


class PowerSampler:
    """Samples `source` with the run's clock, which here is as fast as the real one. `say` gets lines for the
    user, in the sampler's thread.
    """

    def __init__(
        self, source: PowerSource, path: Path, clock_ns: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        self._source = source
        self._clock_ns = clock_ns
        self._say = say
        self._shard = ArrowStream(path, time_series.POWER)
        self._idle = True
        self._heard: dict[str, str] = {}
        self._told, self._answered, self._ended = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)

    def __enter__(self) -> "PowerSampler":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(FIRST_S)

    def rest(self, seconds: float = IDLE_S, first_s: float = FIRST_S) -> str:
        """Sample nodes at rest for `seconds`. Returns why no node reports its power; empty if one does.

        If none does the sampling ends, because a failing tool costs the nodes time too.
        """
        self._answered.wait(first_s)
        if not self._told.is_set():
            self._ended.set()
            silent = [node for node in self._source.nodes if node not in self._heard]
            return next(filter(None, self._heard.values()), f"no answer of {', '.join(silent) or 'any node'}")
        time.sleep(seconds)
        self._idle = False
        return ""

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                began_s = time.monotonic()
                self._sample()
                self._ended.wait(max(0.0, began_s + PERIOD_S - time.monotonic()))
        except Exception as error:  # noqa: BLE001  the boundary of a thread: nobody would see its traceback
            why = one_line(f"{type(error).__name__}: {error}", WORD_CHARS)
            self._heard.update(dict.fromkeys(self._source.nodes, why))
            self._answered.set()
            self._tell(f"power is no longer sampled: {why}")
        finally:
            self._write(self._shard.close)

    def _sample(self) -> None:
        clock_ns, at_us, idle = self._clock_ns(), time.time_ns() // 1000, self._idle
        try:
            readings = self._source.read()
        except Exception as error:  # noqa: BLE001  the boundary of a sample: the run goes on without it
            why = one_line(f"{type(error).__name__}: {error}", WORD_CHARS)
            readings = [{"node": node, "error": why} for node in self._source.nodes]
        rows = [{"at": at_us, "clock_ns": clock_ns, "idle": idle, **_row(one)} for one in readings]
        for row in rows:
            self._heard[row["node"]] = row["error"] or ""
            if any(row["gpu_watts"] or ()):
                self._told.set()
        if self._told.is_set() or self._heard.keys() >= set(self._source.nodes):
            self._answered.set()
        self._shard.append(pa.RecordBatch.from_pylist(rows, schema=time_series.POWER))
        self._write(self._shard.flush)

    def _write(self, action: Callable[[], None]) -> None:
        """The shard keeps what a full disk does not take for the next time."""
        try:
            action()
        except OSError as error:
            self._tell(f"cannot write {self._shard.path.name}: {error}")

    def _tell(self, line: str) -> None:
        with suppress(OSError):  # the listener may write to the same full disk
            self._say(line)


def _row(reading: Mapping[str, Any]) -> dict[str, Any]:
    error = reading.get("error")
    figures = {name: reading.get(name) for name in FIGURES}
    return {"node": reading["node"], **figures, "error": error and one_line(error, WORD_CHARS)}
