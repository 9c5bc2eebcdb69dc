"""analysis.exchange.export: every figure is the run's own, none invented, failures stay infinite."""

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from analysis import RunError, load_run
from analysis.capacity import window_table
from analysis.exchange import FORMATS, export, exporting
from analysis.rows import metrics, parquet, records
from analysis.stats.quantiles import quantile

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
FAILING = {200: "http_error", 300: "truncated", 301: "timeout", 302: "missed", 400: "conn_error"}
"""Rows of the changed run that failed, by place; the window of window 1 has some, and a phase before it."""


def refuse(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden run with some failed requests, and its second window void."""
    path = tmp_path_factory.mktemp("runs") / "changed"
    shutil.copytree(GOLDEN, path)
    rows = load_run(path).requests().to_pylist()
    for place, status in FAILING.items():
        rows[place] |= {"status": status, "error_kind": "made", "error": 'a "quoted", line', "itl_us": None}
        rows[place] |= {"last_token_offset_ns": None, "output_tokens": None}
        if status in ("http_error", "missed"):
            rows[place]["first_token_offset_ns"] = None
        if status == "missed":
            rows[place]["send_offset_ns"] = None
    records.write(metrics.with_latencies(records.table(rows)), path / "requests" / "part-000.parquet")
    lines = load_run(path).windows().to_pylist()
    lines[1] |= {"valid": False, "void_reason": "client_limited"}
    parquet.write(pa.Table.from_pylist(lines, schema=window_table.WINDOWS), path / "windows.parquet")
    return path


def exported(path: Path, format: str, capsys: Any) -> str:
    export(path, format)
    text: str = capsys.readouterr().out
    return text


def test_csv_has_every_request_of_void_windows_too_and_failures_as_inf(
    run_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "rows.csv"
    export(run_path, "csv", out)
    table, rows = pd.read_csv(out), load_run(run_path).requests()
    assert list(table.columns) == [*metrics.FILE.names, "void_reason"]
    assert len(table) == rows.num_rows
    for name, of in (("ttft_ms", metrics.ttft), ("tpot_ms", metrics.tpot), ("e2e_ms", metrics.e2e)):
        counted = ~metrics.word_in(rows, "phase", "retracted")
        ours = [quantile(of(rows)[counted], q) for q in (0.5, 0.9, 1.0)]
        theirs = [quantile(table[name].to_numpy(float)[counted], q) for q in (0.5, 0.9, 1.0)]
        assert theirs == pytest.approx(ours, abs=1e-3)
        assert theirs[-1] == math.inf
    assert table["itl_us"][0].split() == [str(gap) for gap in rows["itl_us"][0].as_py()]
    assert table["error"][200] == 'a "quoted", line'
    assert table["scheduled_at"][0].endswith("Z")
    assert set(table["window_index"][table["void_reason"] == "client_limited"]) == {1}


def test_json_lines_are_strict_and_say_inf_where_a_null_would_hide_a_failure(
    run_path: Path, capsys: Any
) -> None:
    lines = [
        json.loads(line, parse_constant=refuse) for line in exported(run_path, "jsonl", capsys).splitlines()
    ]
    rows = load_run(run_path).requests()
    assert len(lines) == rows.num_rows
    assert [lines[place]["ttft_ms"] for place in FAILING] == ["inf"] * len(FAILING)
    assert lines[200]["itl_us"] is None and lines[0]["itl_us"] == rows["itl_us"][0].as_py()
    assert [line["due_ns"] for line in lines] == rows["due_ns"].to_pylist()
    retracted = [line for line in lines if line["phase"] == "retracted"]
    assert retracted and all(line["ttft_ms"] is None for line in retracted)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_batches_do_not_show(
    format: str, run_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(run_path, format, capsys)
    monkeypatch.setattr(exporting, "BATCH_ROWS", 100)
    assert len(list(exporting.batches(load_run(run_path)))) > 10
    assert exported(run_path, format, capsys) == whole


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_file_is_never_replaced_and_no_half_is_left(format: str, run_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export(run_path, format, out)
    before = out.read_bytes()
    assert before and [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(RunError, match="exists; choose another --out"):
        export(run_path, format, out)
    with pytest.raises(RunError, match="cannot write to"):
        export(run_path, format, tmp_path / "none" / "out")
    broken = tmp_path / "broken"
    shutil.copytree(run_path, broken)
    (broken / "requests" / "part-000.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match="^[^\n]*cannot be read[^\n]*$"):
        export(broken, format, tmp_path / "other")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("other")]
    assert out.read_bytes() == before


def test_a_run_without_windows_has_its_requests(run_path: Path, tmp_path: Path, capsys: Any) -> None:
    killed = tmp_path / "killed"
    shutil.copytree(run_path, killed)
    (killed / "windows.parquet").unlink()
    assert exported(killed, "csv", capsys).count("\n") == load_run(killed).requests().num_rows + 1


def test_a_servers_words_are_no_formula_in_csv_and_themselves_in_json(tmp_path: Path) -> None:
    path, words = tmp_path / "run", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\tx", "fine = fine"]
    shutil.copytree(GOLDEN, path)
    rows = load_run(path).requests().to_pylist()[: len(words)]
    for row, word in zip(rows, words, strict=True):
        row |= {"status": "http_error", "error": word, "replica_id": word}
    shutil.rmtree(path / "schedule")
    records.write(metrics.with_latencies(records.table(rows)), path / "requests" / "part-000.parquet")
    for format, run in (("csv", load_run(path)), ("jsonl", str(path))):
        export(run, format, str(tmp_path / format))
    with (tmp_path / "csv").open(newline="") as file:
        read = [(row["error"], row["replica_id"]) for row in csv.DictReader(file)]
    assert read == [(f"'{word}", f"'{word}") for word in words[:-1]] + [(words[-1], words[-1])]
    lines = [json.loads(line) for line in (tmp_path / "jsonl").read_text().splitlines()]
    assert [line["error"] for line in lines] == words


@pytest.mark.parametrize(
    ("path", "format", "expected"),
    [
        (GOLDEN, "xlsx", "--format xlsx is unknown; choose one of csv, jsonl"),
        (GOLDEN / "sweep.json", "csv", "is not a run folder"),
        (GOLDEN / "nowhere", "csv", "is not a run folder"),
        (GOLDEN.parent, "jsonl", "is not a run folder"),
    ],
)
def test_what_cannot_be_exported_is_refused(path: Path, format: str, expected: str) -> None:
    with pytest.raises(RunError, match=expected):
        export(path, format)
