"""What files of a run folder promise (analysis.rows, analysis.results.runs), held by a real run."""

import json
import os
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from analysis import load_run
from analysis.capacity import window_table
from analysis.results import recount
from analysis.results.runs import RunError
from analysis.rows import metrics, parquet, records
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run.run_folder import checksums
from tests.support import commands
from tests.support.runs.golden import GOLDEN

SCHEMAS = {
    "requests": metrics.FILE,
    "windows": window_table.WINDOWS,
    "timeseries": records.SERVER,
    "clients": records.CLIENTS,
    "power": records.POWER,
}
FILES = {
    "requests": "requests/part-000.parquet",
    **{name: f"{name}.parquet" for name in ("windows", "timeseries", "clients")},
}
FROZEN = json.loads((GOLDEN.parent / "columns.json").read_text())
"""Column -> type and unit. A new column is added to this file; none is changed or taken away."""
UNITS = {"_ns": "ns", "_us": "us", "_ms": "ms", "_s": "s", "_tokens": "tokens", "_qps": "requests/s"}
REQUESTS = GOLDEN / FILES["requests"]
VECTORS: list[str] = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
"""Vector instructions that numpy found on this CPU and can do without, oldest first."""


def told(field: pa.Field, key: str) -> str:
    return (field.metadata or {}).get(key.encode(), b"").decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_column_names_types_and_units_are_frozen(name: str) -> None:
    result = {field.name: [str(field.type), told(field, "unit")] for field in SCHEMAS[name]}
    assert result == FROZEN[name]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_column_says_what_it_means_and_its_name_carries_its_unit(name: str) -> None:
    for field in SCHEMAS[name]:
        assert len(told(field, "doc")) > 3
        suffix = next((end for end in UNITS if field.name.endswith((end, f"{end}_per_node"))), None)
        assert suffix is None or told(field, "unit") == UNITS[suffix], field.name


@pytest.mark.parametrize("name", FILES)
def test_the_golden_run_has_the_frozen_columns_with_their_units_and_docs(name: str) -> None:
    kept = pq.read_schema(GOLDEN / FILES[name])
    assert int(kept.metadata[b"schema_version"]) >= 1 and len(kept) >= 10
    for field in kept:
        assert field.type == SCHEMAS[name].field(field.name).type, field.name
        assert FROZEN[name][field.name][1] == told(field, "unit") and told(field, "doc")


OTHER_DIGITS = {
    "without the newest vector instructions": {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS[1:])},
    "without any vector instructions": {"NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS)},
    "with an older BLAS": {"OPENBLAS_CORETYPE": "Haswell"},
}
"""Environments in which the same sums have another last digit, as on another CPU."""


@pytest.mark.slow
@pytest.mark.parametrize("environment", OTHER_DIGITS.values(), ids=OTHER_DIGITS)
def test_another_cpu_recomputes_the_golden_run(environment: dict[str, str]) -> None:
    ran = commands.run("analysis", "show", str(GOLDEN), "--recompute", env={**os.environ, **environment})
    assert ran.returncode == 0 and ran.stdout.startswith("SAME"), ran.stdout + ran.stderr


def test_the_golden_run_is_whole_small_and_of_no_place() -> None:
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    assert load_run(GOLDEN).manifest["files"] == checksums(GOLDEN)
    assert sum(path.stat().st_size for path in files) < 700_000
    texts = "".join(path.read_text() for path in files if path.suffix != ".parquet")
    columns = [pq.read_table(path).to_pydict() for path in files if path.suffix == ".parquet"]
    texts += json.dumps(columns, default=str)
    places = {"http://127.0.0.1:8000", "vllm", "runs/golden_run"}
    assert not re.findall(r"(?:[\s\"'=]|^)/(?:home|root|tmp|work|usr|mnt|data|opt)\b[^\s\"]*", texts)
    assert set(re.findall(r"https?://[\w.:-]+", texts)) <= places
    assert load_run(GOLDEN).manifest["host"]["name"] == "host"


def test_the_file_says_its_version_and_every_formula() -> None:
    formulas = {metric.name: metric.formula for metric in metrics.METRICS}
    now, then = metrics.FILE.metadata, pq.read_schema(REQUESTS).metadata
    assert json.loads(now[b"formulas"]) == formulas
    assert then == now and int(now[b"schema_version"]) == records.SCHEMA_VERSION
    for metric in metrics.LATENCIES:
        assert told(metrics.FILE.field(f"{metric.name}_ms"), "formula") == metric.formula


def encodings(file: Path) -> dict[str, set[str]]:
    """What each column's pages are encoded by, and that they can be skipped."""
    whole = pq.read_metadata(file)
    groups = [whole.row_group(i) for i in range(whole.num_row_groups)]
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    assert all(chunk.compression == "ZSTD" for chunk in chunks)
    assert all(chunk.has_column_index and chunk.has_offset_index for chunk in chunks)
    used: dict[str, set[str]] = {}
    for chunk in chunks:
        used.setdefault(chunk.path_in_schema, set()).update(chunk.encodings)
    return used


EVERYWHERE = {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED"}
"""Encodings that pyarrow 12, DuckDB 0.10, Polars 0.20, Spark 3.5 (vectorised) and fastparquet 2026.9 read:
each read such a file whole. DELTA_BINARY_PACKED was tried for 64 bits only."""


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_file_has_encodings_that_every_reader_knows(name: str, tmp_path: Path) -> None:
    schema = SCHEMAS[name]
    parquet.write(pa.table(records.empty(schema, 1), schema=schema), tmp_path / "row.parquet")
    used = encodings(tmp_path / "row.parquet")
    assert set().union(*used.values()) <= EVERYWHERE
    wide = {field.name for field in schema if field.type in (pa.int64(), pa.timestamp("us"))}
    assert {path for path, by in used.items() if "DELTA_BINARY_PACKED" in by} == wide


def test_duckdb_reads_times_without_a_package_for_time_zones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a time with a zone its Python client imports pytz, which is not among what it requires."""
    monkeypatch.setitem(sys.modules, "pytz", None)
    rows = load_run(GOLDEN).requests()
    records.write(metrics.with_latencies(rows), tmp_path / "rows.parquet")
    ask = f"select max(scheduled_at), count(*) from '{tmp_path}/rows.parquet'"
    assert duckdb.sql(ask).fetchall() == [(datetime(2026, 11, 23, 13, 1, 53, 425975), len(rows))]
    assert len(duckdb.sql(f"select * from '{tmp_path}/rows.parquet'").fetchall()) == len(rows)


def test_derived_columns_are_the_metrics_and_unknown_is_null() -> None:
    rows = load_run(GOLDEN).requests()
    written = pq.read_table(REQUESTS)
    back = metrics.word_in(rows, "phase", "retracted")
    assert back.sum() == 3
    for metric in metrics.LATENCIES:
        latency = np.where(back, np.nan, metric.of(rows)).astype(np.float32)
        column = written[f"{metric.name}_ms"]
        np.testing.assert_array_equal(column.to_numpy(), latency)
        assert column.null_count == np.isnan(latency).sum() and not pc.any(pc.is_nan(column)).as_py()


def test_nothing_reads_the_derived_columns_back(tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN, tmp_path / "run"))
    written = pq.read_table(REQUESTS)
    for metric in metrics.LATENCIES:
        name = f"{metric.name}_ms"
        place = written.schema.get_field_index(name)
        written = written.set_column(place, name, pa.nulls(written.num_rows, pa.float32()))
    pq.write_table(written, path / FILES["requests"])
    assert load_run(path).requests().equals(load_run(GOLDEN).requests())
    assert recount.recomputed(load_run(path))[1]


@pytest.mark.parametrize("name", ["requests", "windows", "clients", "timeseries"])
def test_a_file_of_another_version_is_one_line(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copytree(GOLDEN, tmp_path / "run"))
    written = pq.read_table(GOLDEN / FILES[name])
    metadata = written.schema.metadata | {b"schema_version": b"1\n9"}
    pq.write_table(written.replace_schema_metadata(metadata), path / FILES[name])
    with pytest.raises(RunError, match=r"^[^\n]* has schema_version 1 9, this version reads \d alone$"):
        getattr(load_run(path), name)()


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The golden run as a kill would have left it: shards, one of them cut, and no conclusion."""
    path = Path(shutil.copytree(GOLDEN, tmp_path / "killed"))
    rows = load_run(GOLDEN).requests().cast(records.SHARD)
    for file in ("sweep.json", "windows.parquet", "clients.parquet", "timeseries.parquet"):
        (path / file).unlink()
    shutil.rmtree(path / "requests")
    for client, (start, end) in enumerate([(0, 300), (300, 900)]):
        shard = ArrowStream(path / "shards" / f"client-{client:02d}.arrow")
        for batch in rows.slice(start, end - start).to_batches(max_chunksize=100):
            shard.append(batch)
        shard.close()
    with (path / "shards" / "client-01.arrow").open("r+b") as file:
        file.truncate(file.seek(0, os.SEEK_END) - 5_000)
    return path


def test_a_killed_run_has_a_row_for_every_planned_request(killed: Path) -> None:
    run, golden = load_run(killed), load_run(GOLDEN).requests()
    rows = run.requests()
    assert run.verdict is None and run.capacity is None and not run.is_collected
    assert run.windows().num_rows == 0 and run.windows().schema.equals(window_table.WINDOWS)
    assert rows["seq"].equals(golden["seq"]) and rows.schema.equals(records.REQUESTS, check_metadata=True)
    lost = pc.equal(rows["error_kind"].cast(pa.string()), "no_record").to_pylist().count(True)
    assert lost == 1206 - 800, "the cut batch, and what no shard has"


@pytest.mark.parametrize(
    "question",
    [
        {"window_index": 1},
        {"phase": "window"},
        {"window_index": 0, "phase": "window"},
        {"window_index": 99},
        {"phase": "no"},
    ],
)
@pytest.mark.parametrize("columns", [None, ["replica_id", "seq"], ["itl_us"], []])
def test_a_selection_is_that_of_the_whole_table_also_of_a_killed_run(
    killed: Path, question: dict[str, Any], columns: list[str] | None
) -> None:
    for run in (load_run(GOLDEN), load_run(killed)):
        expected = run.requests()
        for name, value in question.items():
            kept = [found == value for found in expected[name].to_pylist()]
            expected = expected.filter(pa.array(kept, pa.bool_()))
        expected = expected if columns is None else expected.select(columns)
        found = run.requests(columns=columns, **question)
        assert found.equals(expected) and found.schema.equals(expected.schema, check_metadata=True)
