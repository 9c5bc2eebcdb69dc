"""Samples /metrics of every replica, and the power of nodes, once a second into Arrow IPC streams.

Whatever a server or a node does ends as a row with its reason: a sample may be missing, but the run goes on.
"""

import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families

from analysis.rows import records
from conf.io.http_get import DEFAULT_ACCESS, Access, AskError, HttpAnswer, RedirectError, ask
from conf.io.one_line import one_line
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run.jobs import PowerSource
from loadgen.traffic.schedule import NS

PERIOD_S = 1.0
IDLE_S = 10.0
"""Time at rest before the load (our choice): a GPU is at its idle clocks within a second or two."""
FIRST_S = 20.0
"""Longest wait until every node has answered or one has reported its power: a tool may take 15 s."""
FIGURES = ("gpu_watts", "node_watts", "source")
TIMEOUT_S = 0.8
"""Seconds of the run: below the period, so that a replica that hangs never delays the others' next sample."""
ABSENT_S = 30.0
"""A server that has no /metrics is asked again after this time."""
WORD_CHARS = 200
MOST_BYTES = 8 * 2**20
"""Most bytes of a page; an engine of vLLM's fills some 40 kB (our choice)."""
MOST_LINES = 4096
"""Most series of the wanted metrics; a node of eight engines has some hundred (our choice)."""
COUNT_LIMIT = 2**53
"""Up to here a float holds every whole number; larger figures of a server are refused."""
REPLICA_ID = "x-replica-id"

SPELLINGS: dict[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "prefix_queries": ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
    "prefix_hits": ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
    "preemptions": ("vllm:num_preemptions",),
    "prompt_tokens": ("vllm:prompt_tokens",),
    "generation_tokens": ("vllm:generation_tokens",),
    "finished": ("vllm:request_success",),
}
"""Column and metric, newest name first: vLLM 0.9 to 0.11 give both. Counters may end in `_total`."""
AVERAGED = ("kv_usage",)
"""Metrics that are averaged over several engines behind one address; all others are summed."""

_NAMES = "|".join(name for names in SPELLINGS.values() for name in names)
_WANTED = re.compile(rf"^(?:{_NAMES})(?:_total)?[ \t{{].*$", re.MULTILINE)


class _Sampler(ABC):
    """A thread that fills an Arrow stream until the block ends; `say` tells the user what goes wrong."""

    def __init__(self, name: str, shard: ArrowStream, say: Callable[[str], None], leave_s: float) -> None:
        self._shard, self._say, self._leave_s = shard, say, leave_s
        self._said: set[str] = set()
        self._ended = threading.Event()
        # A second Ctrl-C must not wait for a sample.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(self._leave_s)

    @abstractmethod
    def _run(self) -> None:
        """Sample until the end; raises nothing, for nobody would see its traceback."""

    def _write(self, action: Callable[[], None]) -> None:
        """The shard keeps what a full disk does not take for the next time."""
        try:
            action()
        except OSError as error:
            self._say_once(f"cannot write {self._shard.path.name}: {error}")

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            with suppress(OSError):  # who listens may write to the same full disk
                self._say(line)


class Scraper(_Sampler):
    """Samples `urls` (a replica's name to the address of its metrics) on whole seconds of the run's clock.

    The clock runs `time_scale` times as fast as the real one. A sample bears the name that the answer gives
    in x-replica-id, else the URL's. The key of `access` goes to every URL; `say` gets, in the scraper's
    thread, lines for the user.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        path: Path,
        clock_ns: Callable[[], int],
        access: Access = DEFAULT_ACCESS,
        say: Callable[[str], None] = lambda _: None,
        time_scale: float = 1.0,
    ) -> None:
        self._time_scale, self._timeout_s = time_scale, TIMEOUT_S / time_scale
        leave_s = 2 * max(TIMEOUT_S, self._timeout_s)
        super().__init__("scraper", ArrowStream(path, records.SERVER), say, leave_s)
        self._urls, self._clock_ns, self._access = dict(urls), clock_ns, access
        self._tls = access.tls() if any(url.startswith("https:") for url in urls.values()) else None
        self._absent_until_ns: dict[str, int] = {}
        self._asking: dict[str, threading.Thread] = {}

    def follow(self, urls: Mapping[str, str]) -> None:
        """Sample these from now on."""
        self._urls = dict(urls)

    def _run(self) -> None:
        try:
            while not self._ends_before_tick():
                self._sample()
        except Exception as error:  # noqa: BLE001  the boundary of a thread: nobody would see its traceback
            why = self._plain(f"{type(error).__name__}: {error}")
            self._say_once(f"the engine is no longer observed: {why}")
        finally:
            self._write(self._shard.close)

    def _sample(self) -> None:
        """One row of every server, all asked at once; one that is late delays nobody's next sample."""
        clock_ns, at_us = self._clock_ns(), time.time_ns() // 1000
        due = {
            name: url
            for name, url in self._urls.items()
            if self._absent_until_ns.get(name, clock_ns) <= clock_ns
        }
        answers: dict[str, HttpAnswer | AskError] = {}
        for name, url in due.items():
            if name not in self._asking or not self._asking[name].is_alive():  # a look-up may take long
                asking = threading.Thread(target=self._ask, args=(name, url, answers), daemon=True)
                self._asking[name] = asking
                asking.start()
        deadline_s = time.monotonic() + self._timeout_s
        for name in due:
            self._asking[name].join(max(0.0, deadline_s - time.monotonic()))
        rows = [
            {"at": at_us, "clock_ns": clock_ns, **self._row(name, url, answers.get(name), clock_ns)}
            for name, url in due.items()
        ]
        self._shard.append(pa.RecordBatch.from_pylist(rows, schema=records.SERVER))
        self._write(self._shard.flush)

    def _ends_before_tick(self) -> bool:
        """Sleep to the next tick; one that was slept through is left out, not made up for."""
        period_ns = int(PERIOD_S * NS)
        tick_ns = (self._clock_ns() // period_ns + 1) * period_ns
        while (ahead_ns := tick_ns - self._clock_ns()) > 0:  # timers may fire early
            if self._ended.wait(ahead_ns / NS / self._time_scale):
                return True
        return self._ended.is_set()

    def _ask(self, name: str, url: str, answers: dict[str, HttpAnswer | AskError]) -> None:
        """Put the answer of a server among the others, in a thread of its own."""
        try:
            answers[name] = ask(
                url, self._timeout_s, access=self._access, most_bytes=MOST_BYTES, tls=self._tls
            )
        except AskError as error:
            answers[name] = error

    def _row(
        self, name: str, url: str, answer: HttpAnswer | AskError | None, clock_ns: int
    ) -> dict[str, Any]:
        """A server's figures, or why there are none."""
        if answer is None or isinstance(answer, AskError) and isinstance(answer.__cause__, TimeoutError):
            return {"replica": name, "error": f"no answer within {TIMEOUT_S:g} s"}
        if isinstance(answer, HttpAnswer):
            name = self._plain(answer.names.get(REPLICA_ID, name))
        elif not isinstance(answer, RedirectError):
            return {"replica": name, "error": self._plain(str(answer))}
        if isinstance(answer, RedirectError) or not answer.is_success:
            # One that has no metrics for us is asked less often; one that fails (5xx) may recover at once.
            if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                self._absent_until_ns[name] = clock_ns + int(ABSENT_S * NS)
                self._say_once(f"{url} gives no metrics (HTTP {answer.status}): the engine is not observed")
            return {"replica": name, "error": f"HTTP {answer.status}"}
        try:
            return {"replica": name, **page_figures(answer.body.decode(errors="replace"))}
        except Exception as error:  # noqa: BLE001  the boundary of an answer: whatever came, the run goes on
            return {"replica": name, "error": self._plain(f"{type(error).__name__}: {error}")}

    def _plain(self, text: str) -> str:
        """A server's text without the key, short and printable; a header may hold bytes that are no text."""
        return one_line(self._access.redact(text).encode(errors="replace").decode(), WORD_CHARS)


def page_figures(text: str) -> dict[str, Any]:
    """Figures of a page by column of `records.SERVER`, or `error`. Raises ValueError if it is garbled."""
    # To parse a whole page, mostly histograms, costs tens of ms.
    wanted = [line.group() for line in islice(_WANTED.finditer(text), MOST_LINES + 1)]
    if len(wanted) > MOST_LINES:
        raise ValueError(f"more than {MOST_LINES} lines of vLLM's metrics")
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families("".join(f"{line}\n" for line in wanted)):
        for sample in family.samples:
            samples.setdefault(sample.name.removesuffix("_total"), []).append(sample.value)
    row: dict[str, Any] = {}
    for column, names in SPELLINGS.items():
        values = next((samples[name] for name in names if name in samples), [])
        if values and all(0 <= value < COUNT_LIMIT for value in values):
            row[column] = sum(values) / len(values) if column in AVERAGED else round(sum(values))
    return row or {"error": "none of vLLM's metrics in the answer"}


class PowerSampler(_Sampler):
    """Samples the power of nodes with the run's clock, which here is as fast as the real one."""

    def __init__(
        self, source: PowerSource, path: Path, clock_ns: Callable[[], int], say: Callable[[str], None]
    ) -> None:
        super().__init__("power", ArrowStream(path, records.POWER), say, FIRST_S)
        self._source, self._clock_ns = source, clock_ns
        self._idle = True
        self._heard: dict[str, str] = {}
        self._told, self._answered = threading.Event(), threading.Event()

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
            self._say_once(f"power is no longer sampled: {why}")
        finally:
            self._write(self._shard.close)

    def _sample(self) -> None:
        clock_ns, at_us, idle = self._clock_ns(), time.time_ns() // 1000, self._idle
        try:
            readings = self._source.read()
        except Exception as error:  # noqa: BLE001  the boundary of a sample: the run goes on without it
            why = one_line(f"{type(error).__name__}: {error}", WORD_CHARS)
            readings = [{"node": node, "error": why} for node in self._source.nodes]
        rows = [{"at": at_us, "clock_ns": clock_ns, "idle": idle, **_row(reading)} for reading in readings]
        for row in rows:
            self._heard[row["node"]] = row["error"] or ""
            if any(row["gpu_watts"] or ()):
                self._told.set()
        if self._told.is_set() or self._heard.keys() >= set(self._source.nodes):
            self._answered.set()
        self._shard.append(pa.RecordBatch.from_pylist(rows, schema=records.POWER))
        self._write(self._shard.flush)


def _row(reading: Mapping[str, Any]) -> dict[str, Any]:
    error = reading.get("error")
    figures = {name: reading.get(name) for name in FIGURES}
    return {"node": reading["node"], **figures, "error": error and one_line(error, WORD_CHARS)}
