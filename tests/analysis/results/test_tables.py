"""analysis.results.tables: percentiles by any column, one row per run, and what they do not claim."""

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import load_run
from analysis.results import tables
from analysis.results.runs import RunError
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from tests.support.runs.golden import GOLDEN, changed, sweep_json
from tests.support.runs.run_in_memory import request
from tests.support.words.words import TABLES

MS = 1_000_000


def rows(*lines: dict[str, Any]) -> pa.Table:
    """Answered requests of 4 tokens in 300 ms, but for what a line says."""
    answer = {"output_tokens": 4, "requested_output_tokens": 4, "itl_us": [100_000] * 3}
    made = [request(0, 0.0, 100.0, 30.0, **answer) for _ in lines]
    return records.table([row | {"due_ns": i, "seq": i, **lines[i]} for i, row in enumerate(made)])


def test_groups_are_in_order_of_their_values_with_the_unknown_last() -> None:
    table = rows(
        {"replica_id": "b", "first_token_offset_ns": 10 * MS},
        {"replica_id": None, "status": "timeout"},
        {"replica_id": "a"},
        {"replica_id": "b", "first_token_offset_ns": 30 * MS},
    )
    found = tables.percentiles_of(table, "ttft", (0.5,), "replica_id").to_pylist()
    assert found == [
        {"replica_id": "a", "n": 1, "failed": 0, "ttft_p50_ms": 100.0},
        {"replica_id": "b", "n": 2, "failed": 0, "ttft_p50_ms": 20.0},
        {"replica_id": None, "n": 1, "failed": 1, "ttft_p50_ms": math.inf},
    ]
    chunked = pa.concat_tables([table.slice(i, 1) for i in range(4)])
    assert tables.percentiles_of(chunked, "ttft", (0.5,), "replica_id").to_pylist() == found


def test_n_counts_what_is_known_and_a_failure_decides_the_quantile_it_reaches() -> None:
    table = rows(
        *[{"window_index": 3}] * 8,
        {"window_index": 3, "status": "truncated"},
        {"window_index": 3, "output_tokens": 1},
    )
    (line,) = tables.percentiles_of(table, "tpot", (0.5, 0.9, 0.999)).to_pylist()
    infinite = {"tpot_p90_ms": math.inf, "tpot_p99_9_ms": math.inf}
    assert line == {"window_index": 3, "n": 9, "failed": 1, "tpot_p50_ms": 100.0} | infinite
    (line,) = tables.percentiles_of(table, "itl", (0.5,)).to_pylist()
    assert line == {"window_index": 3, "n": 9 * 3 + 3, "failed": 3, "itl_p50_ms": 100.0}
    (line,) = tables.percentiles_of(table, "path", (0.5,)).to_pylist()
    assert line == {"window_index": 3, "n": 0, "failed": 0, "path_p50_ms": None}


@pytest.mark.parametrize("by", tables.BY)
def test_a_run_by_any_column_counts_every_request_of_its_windows_once(by: str) -> None:
    run = load_run(GOLDEN)
    table = tables.percentiles(run, "ttft", (0.9,), by)
    assert table.column_names == [by, "n", "failed", "ttft_p90_ms"]
    counted = dict(zip(table[by].to_pylist(), table["n"].to_pylist(), strict=True))
    if by == "phase":
        assert counted == {"bridge": 70, "transition": 269, "warmup": 64, "window": 800}, "none was retracted"
    else:
        assert sum(counted.values()) == run.requests(phase="window").num_rows == 800
    assert set(table["failed"].to_pylist()) == {0}
    if table.num_rows == 1:
        windows = metrics.ttft(run.requests(phase="window"))
        assert table["ttft_p90_ms"].to_pylist() == [quantile(windows, 0.9)]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"metric": "tftt"}, "no metric 'tftt'; one of send_lag, ttft, "),
        ({"by": "seq"}, "no percentiles by 'seq'; by one of window_index, phase, "),
        ({"q": [90]}, r"q=\[90\] is not of shares from 0 to 1; 0.9 is the 90th percentile"),
    ],
)
def test_what_there_is_not_is_said_in_one_line(question: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=f"^{message}"):
        tables.percentiles(load_run(GOLDEN), **question)


def test_no_rows_are_no_groups() -> None:
    table = tables.percentiles_of(records.REQUESTS.empty_table(), by="replica_id")
    assert table.num_rows == 0 and table.schema.field("replica_id").type == pa.string()


[GOLDEN_LINE] = TABLES["the golden run's row"]
CLAIMS = {"estimate": "value", "low": "low", "high": "high", "certified": "certified"}


def claimed(path: Path) -> set[str]:
    (line,) = tables.capacity_table([load_run(path)]).to_pylist()
    assert line.keys() == set(tables.CAPACITIES.names)
    return {name for name in CLAIMS if line[f"{name}_qps_per_node"] is not None}


def test_a_run_is_one_row() -> None:
    run = load_run(GOLDEN)
    table = tables.capacity_table([run, run])
    assert table.num_rows == 2 and table.schema == tables.CAPACITIES
    figures = {
        f"{name}_qps_per_node": getattr(run.verdict.capacity.qps_per_node, CLAIMS[name]) for name in CLAIMS
    }
    assert table.to_pylist()[0] == GOLDEN_LINE | figures


@pytest.mark.parametrize(("changes", "claims"), TABLES["what a capacity claims"])
def test_nothing_is_claimed_beyond_what_was_found(tmp_path: Path, changes: Any, claims: list[str]) -> None:
    changes = changes | {"capacity": sweep_json(GOLDEN)["capacity"] | changes.get("capacity", {})}
    assert claimed(changed(tmp_path / "golden_run", **changes)) == set(claims)


def test_a_run_that_did_not_end_has_a_row_without_figures(tmp_path: Path) -> None:
    path = changed(tmp_path / "golden_run")
    (path / "sweep.json").unlink()
    (line,) = tables.capacity_table([load_run(path)]).to_pylist()
    unclaimed = (*(f"{name}_qps_per_node" for name in CLAIMS), "interval_of", "binding", "windows_used")
    unread = {"verdict": "UNFINISHED", "tokens": "5600/140 tokens"}
    assert line == GOLDEN_LINE | dict.fromkeys(unclaimed) | unread
