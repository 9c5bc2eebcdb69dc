"""analysis.exchange.export: every figure is the run's own, none invented, failures stay infinite."""

import csv
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from analysis import RunError, load_run
from analysis.capacity import dwell_table
from analysis.capacity.window_counts import in_window
from analysis.exchange import FORMATS, export, inferencex, load_foreign, request_rows
from analysis.rows import latency_columns, metrics, parquet, records
from analysis.stats.quantiles import quantile
from conf import load
from conf.composed import dump

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
FAILING = {200: "http_error", 300: "truncated", 301: "timeout", 302: "missed", 400: "conn_error"}
"""Rows of the changed run that failed, by place; the window of dwell 1 has some, and a phase before it."""


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
    records.write(latency_columns.with_latencies(records.table(rows)), path / "requests" / "part-000.parquet")
    return path


@pytest.fixture(scope="module")
def void_path(run_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with its second window void."""
    path = tmp_path_factory.mktemp("runs") / "void"
    shutil.copytree(run_path, path)
    mark_void(path, 1)
    return path


def mark_void(path: Path, *indices: int) -> None:
    lines = load_run(path).dwells().to_pylist()
    for index in indices:
        lines[index] |= {"valid": False, "void_reason": "client_limited"}
    parquet.write(pa.Table.from_pylist(lines, schema=dwell_table.DWELLS), path / "dwells.parquet")


def exported(path: Path, format: str, capsys: Any) -> str:
    export(path, format)
    text: str = capsys.readouterr().out
    return text


def window_rows(path: Path, index: int) -> pa.Table:
    run = load_run(path)
    return in_window(run.requests(dwell=index), dwell_table.window(run.dwells().to_pylist()[index]))


def test_csv_has_every_request_and_failures_as_inf(run_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.csv"
    export(run_path, "csv", out)
    table, rows = pd.read_csv(out), load_run(run_path).requests()
    assert list(table.columns) == [*latency_columns.FILE.names, "void_reason"]
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
    monkeypatch.setattr(request_rows, "BATCH_ROWS", 100)
    assert len(list(request_rows.batches(load_run(run_path)))) > 10
    assert exported(run_path, format, capsys) == whole


def test_rows_of_a_void_window_are_kept_and_marked(void_path: Path, capsys: Any) -> None:
    lines = list(csv.DictReader(exported(void_path, "csv", capsys).splitlines()))
    assert {line["dwell"] for line in lines if line["void_reason"] == "client_limited"} == {"1"}
    assert len(lines) == load_run(void_path).requests().num_rows


@pytest.mark.parametrize("format", ["inferencex", "vllm-bench"])
def test_a_void_window_is_left_out_where_it_cannot_be_marked(
    format: str, void_path: Path, capsys: Any
) -> None:
    text = exported(void_path, format, capsys)
    count = len(json.loads(text)) if format == "inferencex" else len(text.splitlines())
    assert count == len(load_run(void_path).dwells()) - 1


@pytest.mark.slow
def test_vllm_round_trip_gives_the_same_quantiles(run_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    export(run_path, "vllm-bench", out)
    loads = load_foreign(out)
    assert len(loads) == 8
    for index, found in enumerate(loads):
        rows = window_rows(run_path, index)
        ours = {
            "ttft_from_send": metrics.ttft_from_send(rows),
            "tpot": metrics.tpot(rows),
            "itl": metrics.itl(rows),
        }
        for name, values in ours.items():
            expected = [quantile(values, q) for q in (0.5, 0.9, 0.99, 1.0)]
            assert [quantile(found.latencies[name], q) for q in (0.5, 0.9, 0.99, 1.0)] == pytest.approx(
                expected
            )
        assert np.sort(found.latencies["e2e_from_send"]) == pytest.approx(
            np.sort(metrics.e2e(rows) - np.nan_to_num(metrics.send_lag(rows), posinf=0.0)), abs=1e-5
        )
        assert (found.asked.rate_qps, found.asked.open_loop) == (
            load_run(run_path).dwells()["rate_qps"][index].as_py(),
            True,
        )
        for name in ("status", "error_kind"):
            assert found.measured[name].to_pylist() == rows[name].to_pylist()


def test_vllm_result_has_the_keys_that_the_tool_writes(run_path: Path, capsys: Any) -> None:
    tool = json.loads((Path(__file__).parents[2] / "data" / "foreign" / "vllm-0.32.0.json").read_text())
    for line in exported(run_path, "vllm-bench", capsys).splitlines():
        tree = json.loads(line, parse_constant=refuse)
        assert tree.keys() == tool.keys()
        lists = [key for key, value in tool.items() if isinstance(value, list)]
        assert {len(tree[key]) for key in lists} == {tree["num_prompts"]}
        assert tree["completed"] + tree["failed"] == tree["num_prompts"]
        assert tree["completed"] == tree["errors"].count("")
        assert tree["total_output_tokens"] == sum(tree["output_lens"])


def test_inferencex_rows_hang_together(run_path: Path, capsys: Any) -> None:
    found = json.loads(exported(run_path, "inferencex", capsys), parse_constant=refuse)
    dwells = load_run(run_path).dwells().to_pylist()
    whole = load_run(run_path).requests().to_pandas().query("status == 'ok'")
    whole["first_s"] = (whole["due_ns"] + whole["first_token_offset_ns"]) / 1e9
    assert len(found) == len(dwells)
    for row, line in zip(found, dwells, strict=True):
        seconds = (line["window_end_ns"] - line["window_start_ns"]) / 1e9
        began = (whole["first_s"] >= line["window_start_ns"] / 1e9) & (
            whole["first_s"] < line["window_end_ns"] / 1e9
        )
        assert row["input_tput_per_gpu"] == pytest.approx(5600 * began.sum() / seconds / 8)
        assert row["tput_per_gpu"] == pytest.approx(row["input_tput_per_gpu"] + row["output_tput_per_gpu"])
        assert row["conc"] == max(1, round(row["maxqps"]["in_flight"]))
        assert row["median_intvty"] == pytest.approx(1 / row["median_tpot"])
        assert (row["isl"], row["osl"], row["tp"], row["ep"]) == (5600, 140, 8, 8)
        assert row["mean_ttft"] is None or not row["maxqps"]["failed"]
    assert any(row["maxqps"]["failed"] for row in found)


def test_inferencex_tells_every_bound_and_the_share_over_it(run_path: Path, capsys: Any) -> None:
    lines = {line["index"]: line for line in load_run(run_path).dwells().to_pylist()}
    for row in json.loads(exported(run_path, "inferencex", capsys)):
        own = row["maxqps"]
        line = lines[own["dwell"]]
        counts = {limit: (line[f"{limit}_over"], line[f"{limit}_determined"]) for limit in ("ttft", "tpot")}
        expected = {limit: over / determined for limit, (over, determined) in counts.items()}
        assert own["share_over"] == pytest.approx(expected)
    asked = load(["slo.itl_p99_ms=400", "slo.joint=.9"])
    assert inferencex._others(asked) == {"itl_p99_ms": 400.0, "joint_p90": 0.9}
    counted = {"bounds": [{"bound": "itl_p99", "over": 1.0, "determined": 50.0}]}
    assert dwell_table.over_share(counted, "itl_p99") == 0.02
    assert dwell_table.over_share({"bounds": None}, "joint_p90") is None


def test_per_gpu_figures_of_unknown_gpus_are_null(run_path: Path, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "external"
    shutil.copytree(run_path, path)
    target = ["engine=external", "target.urls=[http://x:1]"]
    (path / "config.yaml").write_text(dump(load(target, base=path / "config.yaml")))
    for row in json.loads(exported(path, "inferencex", capsys)):
        unknown = (
            "tput_per_gpu",
            "input_tput_per_gpu",
            "output_tput_per_gpu",
            "conc",
            "tp",
            "hw",
            "precision",
        )
        assert {row[name] for name in unknown} == {None} and row["model"]
        assert row["maxqps"]["gpus"] is row["maxqps"]["replicas"] is None
        assert row["median_tpot"] and row["maxqps"]["in_flight"]


def test_a_modelled_gpu_is_not_passed_off_as_one(run_path: Path, capsys: Any) -> None:
    row = json.loads(exported(run_path, "inferencex", capsys))[0]
    assert (row["hw"], row["framework"], row["image"]) == ("modelled-mi325x", "maxqps-simulated", None)


@pytest.mark.parametrize(
    ("words", "hw", "framework"),
    [
        (["engine=vllm"], "mi325x", "vllm"),
        (["engine=vllm_cpu"], None, "vllm"),
        (["engine=vllm_emulated"], "modelled-mi325x", "vllm"),
        (["engine=external", "target.urls=[http://x:1]"], None, None),
    ],
)
def test_what_is_not_known_of_a_service_is_null(
    words: list[str], hw: str | None, framework: str | None
) -> None:
    found = inferencex.service(load(words))
    assert (found["hw"], found["framework"], found["spec_decoding"]) == (hw, framework, None)
    assert (found["model"] is None) == (framework is None)


@pytest.mark.slow
def test_concurrency_and_tokens_are_those_of_one_replica_and_its_gpus(run_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "two"
    shutil.copytree(run_path, path)
    asked = load_run(path).config
    layout = replace(asked.layout, name="dp2_tp4_ep4", tensor_parallel=4, replicas_per_node=2)
    (path / "config.yaml").write_text(dump(replace(asked, layout=layout)))
    rows = []
    for name in (run_path, path):
        export(name, "inferencex", tmp_path / f"{name.name}.json")
        rows.append(json.loads((tmp_path / f"{name.name}.json").read_text())[0])
    assert rows[0]["tput_per_gpu"] == rows[1]["tput_per_gpu"]
    assert rows[1]["conc"] == round(rows[0]["maxqps"]["in_flight"] / 2)
    assert (rows[1]["tp"], rows[1]["maxqps"]["gpus"], rows[1]["maxqps"]["replicas"]) == (4, 8, 2)


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


def test_what_has_no_rate_is_said(run_path: Path, void_path: Path, tmp_path: Path, capsys: Any) -> None:
    killed, void = tmp_path / "killed", tmp_path / "void"
    shutil.copytree(run_path, killed)
    (killed / "dwells.parquet").unlink()
    shutil.copytree(void_path, void)
    mark_void(void, 0, 2, 3, 4, 5, 6, 7)
    for path, why in ((killed, "no window of it ended"), (void, "all 8 of its windows are void")):
        with pytest.raises(RunError, match=f"no rate to export: {why}; --format csv has its requests"):
            export(path, "vllm-bench")
        assert exported(path, "csv", capsys).count("\n") == load_run(path).requests().num_rows + 1


def test_a_servers_words_are_no_formula_in_csv_and_themselves_in_json(tmp_path: Path) -> None:
    path, words = tmp_path / "run", ["=cmd|' /C calc'!A0", "+1", "-1", "@x", "\tx", "fine = fine"]
    shutil.copytree(GOLDEN, path)
    rows = load_run(path).requests().to_pylist()[: len(words)]
    for row, word in zip(rows, words, strict=True):
        row |= {"status": "http_error", "error": word, "replica_id": word}
    shutil.rmtree(path / "schedule")
    records.write(latency_columns.with_latencies(records.table(rows)), path / "requests" / "part-000.parquet")
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
        (GOLDEN, "xlsx", "--format xlsx is unknown; choose one of inferencex, csv, jsonl, vllm-bench"),
        (GOLDEN / "sweep.json", "csv", "is a file; export writes run folders"),
        (GOLDEN / "nowhere", "csv", "is not a run folder"),
        (GOLDEN.parent, "inferencex", "holds no run folder|is not a run folder"),
    ],
)
def test_what_cannot_be_exported_is_refused(path: Path, format: str, expected: str) -> None:
    with pytest.raises(RunError, match=expected):
        export(path, format)


def test_a_study_is_exported_by_its_parts_or_as_rows_of_all(
    run_path: Path, tmp_path: Path, capsys: Any
) -> None:
    study = tmp_path / "study"
    for name in ("one", "two"):
        shutil.copytree(run_path, study / name)
    parts = [{"name": name, "exit_code": 0} for name in ("one", "two")]
    tree = {"study": "deployments", "exit_code": 0, "names": ["one", "two"], "parts": parts}
    (study / "study.json").write_text(json.dumps(tree))
    rows = json.loads(exported(study, "inferencex", capsys))
    assert [row["maxqps"]["run"] for row in rows] == ["one"] * 8 + ["two"] * 8
    with pytest.raises(RunError, match="is a study: export one of its parts"):
        export(study, "csv")
