"""Parquet of analysis.rows in other tools: the same percentiles as ours, failures among them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analysis import load_run
from analysis.results import tables
from analysis.rows import latency_columns, records
from tests.support.runs.golden import GOLDEN

COLUMNS = ("ttft_ms", "tpot_ms")
SHARES = (0.5, 0.9, 0.99)
Figures = dict[int, list[float]]
Reader = Callable[[Path], Figures]


def by_duckdb(folder: Path) -> Figures:
    asked = ", ".join(f"quantile_cont({name}, {q})" for name in COLUMNS for q in SHARES)
    sql = f"select dwell, {asked} from '{folder}/*.parquet' where phase = 'window' group by dwell"
    return {dwell: list(figures) for dwell, *figures in duckdb.connect().execute(sql).fetchall()}


def by_polars(folder: Path) -> Figures:
    asked = [pl.col(name).quantile(q, "linear").alias(f"{name}{q}") for name in COLUMNS for q in SHARES]
    windows = pl.scan_parquet(folder / "*.parquet").filter(pl.col("phase") == "window")
    return {
        dwell: figures for dwell, *figures in map(list, windows.group_by("dwell").agg(asked).collect().rows())
    }


def by_pandas(folder: Path) -> Figures:
    rows = pd.read_parquet(folder, columns=["dwell", "phase", *COLUMNS])
    found = rows[rows.phase == "window"].groupby("dwell")[list(COLUMNS)].quantile(list(SHARES)).unstack()
    return {int(dwell): [float(x) for x in figures] for dwell, figures in found.iterrows()}


READERS: list[Reader] = [by_duckdb, by_polars, by_pandas]


def ours(rows: pa.Table) -> Figures:
    """From the raw offsets in float64."""
    rows = rows.filter(pc.field("phase") == "window")
    halves = [tables.percentiles_of(rows, metric, SHARES).to_pylist() for metric in ("ttft", "tpot")]
    return {
        a["dwell"]: [line[name] for line in (a, b) for name in line if name[-3:] == "_ms"]
        for a, b in zip(*halves, strict=True)
    }


def same(read: Figures, expected: Figures) -> None:
    """To the precision of the file's float32.

    Among failures DuckDB and pandas subtract infinity from itself: their nan is our infinity, never a number.
    """
    assert read.keys() == expected.keys()
    for dwell, figures in expected.items():
        for found, wanted in zip(read[dwell], figures, strict=True):
            assert (
                found == pytest.approx(wanted, rel=2e-7)
                if math.isfinite(wanted)
                else not math.isfinite(found)
            )


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden run with failures: every 20th of dwell 1, 5th of 2 and all of 3; and without a TPOT in 4."""
    lines: list[dict[str, Any]] = load_run(GOLDEN).requests(columns=without_gaps()).to_pylist()
    every = {1: 20, 2: 5, 3: 1}
    for line in lines:
        if line["dwell"] in every and line["seq"] % every[line["dwell"]] == 0:
            line["status"] = "timeout"
        if line["dwell"] == 4:
            line["output_tokens"] = 1
    folder = tmp_path_factory.mktemp("failing") / "requests"
    records.write(latency_columns.with_latencies(records.table(lines)), folder / "part-000.parquet")
    return folder


def without_gaps() -> list[str]:
    return [name for name in records.REQUESTS.names if name != "itl_us"]


@pytest.mark.parametrize("reader", READERS)
def test_a_failure_is_infinite_and_what_does_not_apply_is_left_out_in_every_reader(
    reader: Reader, failing: Path
) -> None:
    expected = ours(records.read(failing))
    infinite = {dwell: [x is not None and math.isinf(x) for x in found] for dwell, found in expected.items()}
    assert infinite == {
        0: [False] * 6,
        1: [False, False, True] * 2,
        2: [False, True, True] * 2,
        3: [True] * 6,
        **{quiet: [False] * 6 for quiet in (4, 5, 6, 7)},
    }
    assert expected[4][3:] == [None] * 3
    read = reader(failing)
    assert all(x is None or math.isnan(x) for x in read[4][3:]), "unknown, not zero"
    same({d: figures[: 3 if d == 4 else 6] for d, figures in read.items()}, expected | {4: expected[4][:3]})


def test_percentiles_of_the_file_are_those_of_dwells_parquet() -> None:
    run = load_run(GOLDEN)
    recorded = run.dwells().select([f"{m}_p{q}_ms" for m in ("ttft", "tpot") for q in (50, 90, 99)])
    assert list(ours(run.requests()).values()) == [list(line.values()) for line in recorded.to_pylist()]
