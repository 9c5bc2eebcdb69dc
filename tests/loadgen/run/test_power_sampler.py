"""loadgen/run/samplers.py: samples at rest and under load, sources that fail, what the folder holds."""

import itertools
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import load_run
from analysis.rows import records
from loadgen.run import lifecycle, samplers
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.run.samplers import PowerSampler
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.machine.patience import until
from tests.support.virtual.virtual_fleet import EXPERIMENT, HoldRate, VirtualFleet, site


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


TOLD = {"gpu_watts": (700.0, None), "node_watts": None, "source": "hwmon", "error": None}
SILENT = {"gpu_watts": (), "error": "no\nGPU\x1b[31m"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty samples a second."""
    monkeypatch.setattr(samplers, "PERIOD_S", 0.05)


def sampled(source: Any, path: Path, first_s: float = 60.0) -> tuple[str, list[dict[str, Any]]]:
    """What the sampler says, and its rows, a few of them under load where somebody tells."""
    path = path / "power.arrow"
    with PowerSampler(source, path, lambda: source.reads * NS, lambda _: None) as sampler:
        why = sampler.rest(0.0, first_s)
        at_rest = source.reads
        until(lambda: bool(why) or source.reads > at_rest + 1)
    rows: pa.Table = records.read_stream(path, records.POWER)
    return why, rows.to_pylist()


@pytest.mark.usefixtures("quick")
def test_samples_before_the_load_are_told_from_those_under_it(tmp_path: Path) -> None:
    why, rows = sampled(Nodes(TOLD), tmp_path)
    assert why == "" and rows[0]["idle"] and not rows[-1]["idle"]
    kept = {name: rows[0][name] for name in TOLD}
    assert kept == TOLD | {"gpu_watts": [700.0, None]} and rows[0]["node"] == "a"
    assert [row["clock_ns"] for row in rows] == [at * NS for at in range(len(rows))]


@pytest.mark.usefixtures("quick")
def test_a_sample_that_fails_is_a_row_with_its_reason(tmp_path: Path) -> None:
    why, rows = sampled(Nodes(TOLD, RuntimeError("Ray\nis gone"), TOLD), tmp_path)
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

    why, rows = sampled(Mute(TOLD, nodes=("a", "b")), tmp_path, first_s=0.01)
    assert why == "no answer of a, b" and rows == []


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, power: Any) -> Path:
    monkeypatch.setattr(lifecycle, "LoadFleet", VirtualFleet)
    monkeypatch.setattr(lifecycle, "IDLE_S", 0.0)
    folder = RunFolder.create(tmp_path, "one")
    where = site(Start(8.0, 5.2), power=power)
    RunLifecycle(HoldRate(EXPERIMENT, 3.0, 20, 5), folder, where, lambda *_, **__: None).measure()
    return folder.path


def test_a_run_keeps_the_samples_and_says_that_they_cover_too_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual clock runs through a window in no time, so that no sample falls into it."""
    run = load_run(measured(tmp_path, monkeypatch, Nodes(TOLD)))
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


def test_an_unforeseen_end_of_the_sampling_is_reported(quick: None, tmp_path: Path) -> None:
    lines: list[str] = []
    broken = Nodes({"gpu_watts": (), "node_watts": "hot", "source": "hwmon", "error": None})
    with PowerSampler(broken, tmp_path / "power.arrow", lambda: 0, lines.append) as sampler:
        until(lambda: lines)
        assert sampler.rest(0.0, 60.0)
    (line,) = lines
    assert line.startswith("power is no longer sampled: ArrowInvalid: ")
