"""loadgen/run/samplers.py: vLLM's names old and new, servers that hang or babble, power."""

import itertools
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import load_run
from analysis.rows import records
from analysis.rows.records import SERVER, read_stream
from conf.io.http_get import Access
from conf.io.secret import Secret
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run import lifecycle, samplers
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.run.samplers import SPELLINGS, PowerSampler, Scraper, page_figures
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.runs import run_folders
from tests.support.servers.threaded_server import Answer, Reply, serving
from tests.support.virtual.virtual_fleet import EXPERIMENT, HoldRate, VirtualFleet, site

PAGES = yaml.safe_load((Path(__file__).parents[2] / "data" / "vllm_pages.yaml").read_text())
PAGE: str = PAGES["page"]
TOLD: dict[str, float] = PAGES["figures"]


def test_vllms_names_become_columns() -> None:
    assert page_figures(PAGE) == TOLD
    assert set(TOLD) == set(SPELLINGS) == set(SERVER.names) - {"at", "clock_ns", "replica", "error"}
    assert page_figures(PAGE.replace("\n", "\r\n")) == TOLD


def test_several_engines_are_summed_and_their_cache_usage_is_averaged() -> None:
    second = PAGE.replace('engine="0"', 'engine="1"').replace(" 0.25\n", " 0.75\n")
    second = second.replace("} 3.0\n", "} 10.0\n", 1)
    double = {name: 2 * value for name, value in TOLD.items()}
    assert page_figures(PAGE + second) == double | {"kv_usage": 0.5, "running": 13}


@pytest.mark.parametrize(("text", "reported"), PAGES["others"])
def test_other_spellings_and_numbers_nobody_believes(text: str, reported: dict[str, float]) -> None:
    assert page_figures(text) == reported


@pytest.mark.parametrize(
    "text", ["", "<html>no</html>", "sglang:num_running_reqs 4", "vllm:num_requests_running_more 4", "\0\n{}"]
)
def test_a_page_without_vllms_metrics_says_so(text: str) -> None:
    assert page_figures(text) == {"error": "none of vLLM's metrics in the answer"}


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([name for names in SPELLINGS.values() for name in names]),
            st.text('{}=",\\ ab\n#', max_size=8),
            st.text("0123456789.eE+-naNIf _\t", max_size=8),
        ),
        max_size=4,
    )
)
def test_any_page_gives_columns_of_the_schema_or_a_value_error(lines: list[tuple[str, str, str]]) -> None:
    text = "\n".join(f"{name}{labels} {value}" for name, labels, value in lines)
    try:
        told = page_figures(text)
    except ValueError:
        return
    assert told
    pa.RecordBatch.from_pylist([told], schema=SERVER)


class Server:
    """A server for each name; `asked` counts requests, and `keys` are those that came with them."""

    def __init__(self, **routes: Answer) -> None:
        self.routes, self.urls = routes, dict[str, str]()
        self.asked: Counter[str] = Counter()
        self.keys: dict[str, set[str | None]] = {}
        self._servers = ExitStack()

    def __enter__(self) -> "Server":
        for name in self.routes:
            self.urls[name] = self._servers.enter_context(serving(partial(self._answer, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._servers.close()

    def _answer(self, name: str, headers: Mapping[str, str], body: bytes) -> Reply:
        self.asked[name] += 1
        self.keys.setdefault(name, set()).add(headers.get("Authorization"))
        return self.routes[name](headers, body)


def says(text: str, status: int = 200, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda *_: (status, named, text.encode())


def hangs(*_: object) -> Reply:
    time.sleep(PATIENCE_S)
    return says("")({}, b"")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten samples a second; what is slower than that on a busy machine is only slower."""
    monkeypatch.setattr(samplers, "PERIOD_S", 0.1)
    monkeypatch.setattr(samplers, "TIMEOUT_S", 0.08)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "timeseries.arrow"


def rows_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What is on disk now, also of a stream that is still being written, by replica."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in read_stream(path, SERVER).to_pylist():
        rows.setdefault(row["replica"], []).append(row)
    return rows


def good(path: Path, replica: str) -> list[dict[str, Any]]:
    return [row for row in rows_of(path).get(replica, []) if row["error"] is None]


MISSING = {
    "hung": "no answer within 0.08 s",
    "down": "HTTP 503",
    "half": "bytes before its end",
    "noise": "none of vLLM's metrics",
    "broken": "ValueError",
    "refused": "Connection refused",
}


def test_every_replica_has_a_row_a_second_whatever_the_others_do(path: Path) -> None:
    routes = {
        "fine": says(PAGE),
        "hung": hangs,
        "half": says("vllm:num_requests_running 1\n", Content_Length="1000"),
        "noise": says("<html>"),
    }

    def told(replica: str) -> bool:
        return any(MISSING[replica] in (row["error"] or "") for row in rows_of(path).get(replica, []))

    with Server(**routes, down=says("", 503), broken=says("vllm:num_requests_running{ 1")) as server:
        urls = server.urls | {"refused": "http://127.0.0.1:1/metrics"}
        with Scraper(urls, path, time.monotonic_ns):
            until(lambda: len(good(path, "fine")) >= 3 and all(map(told, MISSING)))
    rows = rows_of(path)
    ticks = {replica: [row["clock_ns"] for row in its] for replica, its in rows.items()}
    assert set(rows) == set(urls)
    assert all(its == ticks["fine"] for its in ticks.values())
    assert all(row.items() >= TOLD.items() for row in good(path, "fine"))
    for replica in MISSING:
        assert all(row["error"] and row["running"] is None for row in rows[replica])


def test_a_fast_clock_is_sampled_in_each_of_its_seconds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slept by the real clock instead, there would be a sample in every tenth of them."""
    monkeypatch.setattr(samplers, "PERIOD_S", 1.0)
    scale, zero_ns = 10.0, time.monotonic_ns()

    def clock_ns() -> int:
        return int((time.monotonic_ns() - zero_ns) * scale)

    with Server(fine=says(PAGE)) as server, Scraper(server.urls, path, clock_ns, time_scale=scale):
        until(lambda: len(good(path, "fine")) >= 4)
    seconds = [row["clock_ns"] // 10**9 for row in rows_of(path)["fine"]]
    gaps = [later - earlier for earlier, later in zip(seconds, seconds[1:], strict=False)]
    assert statistics.median(gaps) < 5, "a busy machine may delay some"


def test_a_server_without_metrics_is_said_once_and_asked_seldom(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with Server(fine=says(PAGE), none=says("", 404), moved=says("", 302, Location="/fine")) as server:
        with Scraper(server.urls, path, time.monotonic_ns, say=lines.append):
            until(lambda: len(lines) == 2)
            answered = server.asked["none"], server.asked["moved"]
            seen = len(good(path, "fine"))
            until(lambda: len(good(path, "fine")) >= seen + 2)
        assert (server.asked["none"], server.asked["moved"]) == answered
        assert rows_of(path)["none"][-1]["error"] == "HTTP 404"
        assert sorted(line.partition(" gives ")[2] for line in lines) == [
            "no metrics (HTTP 302): the engine is not observed",
            "no metrics (HTTP 404): the engine is not observed",
        ]
        monkeypatch.setattr(samplers, "ABSENT_S", 0.0)
        with Scraper({"none": server.urls["none"]}, path, time.monotonic_ns, say=lines.append):
            until(lambda: server.asked["none"] >= answered[0] + 2)
    assert len(lines) == 3


def test_a_sample_belongs_to_the_replica_that_answered(path: Path) -> None:
    def in_turn(*request: Any) -> Reply:
        return says(PAGE, x_replica_id=f"r{server.asked['front'] % 2}")(*request)

    with (
        Server(front=in_turn) as server,
        Scraper(server.urls, path, time.monotonic_ns),
    ):
        until(lambda: good(path, "r0") and good(path, "r1"))


def test_the_key_goes_to_the_endpoints_alone_and_into_no_file(path: Path) -> None:
    lines: list[str] = []
    routes = {"closed": says("", 401, X_Replica_Id="secret-key"), "elsewhere": says(PAGE)}
    with Server(open=says(PAGE), moved=says(""), **routes) as server:
        urls = {name: url for name, url in server.urls.items() if name != "elsewhere"}
        server.routes["moved"] = says("", 307, Location=f"{server.urls['elsewhere']}/secret-key")
        with Scraper(urls, path, time.monotonic_ns, Access(Secret("secret-key")), lines.append):
            until(lambda: good(path, "open") and len(lines) == 2)
    assert server.keys == dict.fromkeys(urls, {"Bearer secret-key"})
    assert b"secret-key" not in path.read_bytes() and "secret-key" not in str(lines)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk without room as long as this is set."""
    has_none, flush = threading.Event(), ArrowStream.flush
    has_none.set()
    monkeypatch.setattr(
        ArrowStream, "flush", lambda shard: (run_folders.full if has_none.is_set() else flush)(shard)
    )
    return has_none


def test_a_full_disk_is_said_once_and_who_is_told_may_fail_on_it(path: Path, full: threading.Event) -> None:
    lines: list[str] = []

    def fails(line: str) -> None:
        lines.append(line)
        run_folders.full()

    with (
        Server(fine=says(PAGE), none=says("", 404)) as server,
        Scraper(server.urls, path, time.monotonic_ns, say=fails),
    ):
        until(lambda: len(lines) == 2)
        assert rows_of(path) == {}
        full.clear()
        until(lambda: len(good(path, "fine")) >= 3)
    assert [row["error"] for row in rows_of(path)["none"]] == ["HTTP 404"]
    assert len(lines) == 2 and "cannot write timeseries.arrow: [Errno 28] No space left on device" in lines


def test_an_unforeseen_end_of_the_sampling_is_reported(path: Path) -> None:
    lines: list[str] = []

    def clock_ns() -> int:
        raise RuntimeError("this clock is broken")

    with Scraper({"r0": "http://127.0.0.1:1/"}, path, clock_ns, say=lines.append):
        until(lambda: lines)
    assert lines == ["the engine is no longer observed: RuntimeError: this clock is broken"]


def test_a_run_that_ends_at_once_leaves_an_empty_stream(path: Path) -> None:
    before = threading.active_count()
    with Scraper({"hung": "http://127.0.0.1:1/"}, path, lambda: 0):
        pass
    assert read_stream(path, SERVER).num_rows == 0
    assert threading.active_count() == before


def test_samples_follow_a_service_to_its_new_replicas(path: Path) -> None:
    with (
        Server(old=says(PAGE), new=says(PAGE)) as server,
        Scraper({"r0": server.urls["old"]}, path, time.monotonic_ns) as scraper,
    ):
        until(lambda: good(path, "r0"))
        scraper.follow({"r1": server.urls["new"]})
        until(lambda: good(path, "r1"))
        ended, others = len(good(path, "r0")), len(good(path, "r1"))
        until(lambda: len(good(path, "r1")) > others + 1)
        assert len(good(path, "r0")) == ended


class Nodes:
    """A source whose readings are given; the last one is repeated."""

    def __init__(self, *readings: Any, nodes: Sequence[str] = ("a",)) -> None:
        self._readings = itertools.chain(readings, itertools.repeat(readings[-1]))
        self._nodes = tuple(nodes)
        self.reads = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    def read(self) -> Sequence[Mapping[str, Any]]:
        self.reads += 1
        reading = next(self._readings)
        if isinstance(reading, Exception):
            raise reading
        return [{"node": node, **reading} for node in self._nodes]


WATTS = {"gpu_watts": (700.0, None), "node_watts": None, "source": "hwmon", "error": None}
SILENT = {"gpu_watts": (), "error": "no\nGPU\x1b[31m"}


def sampled(source: Any, path: Path, first_s: float = 60.0) -> tuple[str, list[dict[str, Any]]]:
    """What the sampler says, and its rows, a few of them under load where somebody tells."""
    path = path / "power.arrow"
    with PowerSampler(source, path, lambda: source.reads * NS, lambda _: None) as sampler:
        why = sampler.rest(0.0, first_s)
        at_rest = source.reads
        until(lambda: bool(why) or source.reads > at_rest + 1)
    rows: pa.Table = records.read_stream(path, records.POWER)
    return why, rows.to_pylist()


def test_samples_before_the_load_are_told_from_those_under_it(tmp_path: Path) -> None:
    why, rows = sampled(Nodes(WATTS), tmp_path)
    assert why == "" and rows[0]["idle"] and not rows[-1]["idle"]
    kept = {name: rows[0][name] for name in WATTS}
    assert kept == WATTS | {"gpu_watts": [700.0, None]} and rows[0]["node"] == "a"
    assert [row["clock_ns"] for row in rows] == [at * NS for at in range(len(rows))]


def test_a_sample_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    why, rows = sampled(Nodes(WATTS, RuntimeError("Ray\nis gone"), WATTS), tmp_path)
    assert why == "" and rows[1]["error"] == "RuntimeError: Ray is gone" and rows[1]["gpu_watts"] is None
    assert rows[2]["error"] is None


def test_where_nobody_tells_the_reason_is_said_and_the_sampling_ends(tmp_path: Path) -> None:
    source = Nodes(SILENT)
    before = threading.active_count()
    why, rows = sampled(source, tmp_path)
    assert why.startswith("no GPU") and why.isprintable() and len(rows) == source.reads == 1
    assert threading.active_count() == before


def test_nodes_that_never_answer_are_named(tmp_path: Path) -> None:
    class Mute(Nodes):
        def read(self) -> Sequence[Mapping[str, Any]]:
            return []

    why, rows = sampled(Mute(WATTS, nodes=("a", "b")), tmp_path, first_s=0.01)
    assert why == "no answer of a, b" and rows == []


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: Any) -> Path:
    monkeypatch.setattr(lifecycle, "LoadFleet", VirtualFleet)
    monkeypatch.setattr(lifecycle, "IDLE_S", 0.0)
    monkeypatch.setattr(samplers, "PERIOD_S", 1.0)
    folder = RunFolder.create(tmp_path, "one")
    where = site(Start(8.0, 5.2), power=power)
    RunLifecycle(HoldRate(EXPERIMENT, 3.0, 20, 5), folder, where, lambda *_, **__: None).measure()
    return folder.path


def test_a_run_keeps_the_samples_and_says_that_they_cover_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual clock runs through a window in no time, so that no sample falls into it."""
    run = load_run(measured(tmp_path, monkeypatch, Nodes(WATTS)))
    assert run.power().num_rows and set(run.power()["node"].to_pylist()) == {"a"}
    assert run.verdict and run.verdict.power
    assert run.verdict.power.unknown.startswith("no valid window is covered by samples")
    assert run.verdict.power.nodes[0].gpus_told == 1 and run.verdict.power.nodes[0].gpus == 2
    assert "power.parquet" in run.manifest["files"] and not (run.path / "shards").exists()


@pytest.mark.parametrize(
    ("power", "why"), [(None, "as said"), (Nodes(SILENT), "1 of 1 node(s) told no power (a): no GPU")]
)
def test_a_run_without_power_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: Any, why: str
) -> None:
    run = load_run(measured(tmp_path, monkeypatch, power))
    assert run.verdict and run.verdict.power and run.verdict.power.unknown.startswith(why)
    assert run.verdict.power.quoted is None and run.verdict.power.windows == ()
    assert run.power().num_rows == (0 if power is None else 1)


def test_an_unforeseen_end_of_the_sampling_of_power_is_reported(tmp_path: Path) -> None:
    lines: list[str] = []
    broken = Nodes({"gpu_watts": (), "node_watts": "hot", "source": "hwmon", "error": None})
    with PowerSampler(broken, tmp_path / "power.arrow", lambda: 0, lines.append) as sampler:
        until(lambda: lines)
        assert sampler.rest(0.0, 60.0)
    (line,) = lines
    assert line.startswith("power is no longer sampled: ArrowInvalid: ")
