"""analysis/notebooks on the golden run: each as a script, and one as a notebook."""

import ast
import re
import runpy
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import jupytext
import matplotlib
import matplotlib.pyplot as plt
import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis
from conf.compose import dump
from tests.support.runs.golden import GOLDEN, changed

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "analysis" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
LONG = ("capacity_of_one_run", "prediction_and_measurement")


@pytest.fixture(autouse=True)
def on_the_golden_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LOADGEN_RUN", "LOADGEN_RUN_B"):  # its own, where no other is named
        monkeypatch.delenv(name, raising=False)
    matplotlib.use("Agg")
    yield
    plt.close("all")


SCRIPTS = [
    pytest.param(path, marks=[pytest.mark.slow] if path.stem in LONG else [], id=path.stem)
    for path in NOTEBOOKS
]


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_notebook_runs_as_a_script_and_says_something(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(path))
    output = capsys.readouterr().out
    assert output
    if path.stem == "layouts_compared":
        assert "no ratio: LOADGEN_RUN_B names no second run" in output
        assert "B / A =" not in output and "published" not in output


def other(path: Path, tensor_parallel: int = 4, **sweep: Any) -> Path:
    """The golden run on two replicas per node, with another conclusion."""
    changed(path, **sweep)
    experiment = analysis.load_run(GOLDEN).config
    layout = replace(experiment.layout, tensor_parallel=tensor_parallel, replicas_per_node=2)
    (path / "config.yaml").write_text(dump(replace(experiment, layout=layout)))
    return path


@pytest.mark.parametrize(
    ("second", "message", "unsaid"),
    [
        ({"valid": False, "exit_code": 4, "reason": "client_limited"}, "no ratio B / A: B", ("published",)),
        ({}, "published 1.45: outside of the interval", ()),
        ({"tensor_parallel": 2}, "published 1.45 is of two TP4 replicas", ("of the interval",)),
    ],
)
def test_layouts_are_compared_of_two_runs_that_claim_a_capacity(
    second: dict[str, Any],
    message: str,
    unsaid: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOADGEN_RUN_B", str(other(tmp_path / "b", **second)))
    left = runpy.run_path(str(FOLDER / "layouts_compared.py"))
    out = capsys.readouterr().out
    assert message in out and not any(words in out for words in unsaid)
    assert bool(left["compared"]) is ("B / A = " in out)


def test_the_worst_window_is_one_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = other(tmp_path / "void")
    table = pq.read_table(path / "windows.parquet")
    place = table.column_names.index("valid")
    void = table.set_column(place, table.schema.field(place), pa.array([False] * table.num_rows))
    pq.write_table(void, path / "windows.parquet")
    monkeypatch.setenv("LOADGEN_RUN", str(path))
    with pytest.raises(analysis.RunError, match="no window of this run is valid"):
        runpy.run_path(str(FOLDER / "violated_bound.py"))


def test_arrivals_during_an_answer_are_those_of_sql_over_all_rows_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = runpy.run_path(str(FOLDER / "violated_bound.py"))
    counted = duckdb.execute(
        """
        with sent as (select seq, due_ns + send_offset_ns as at_ns from read_parquet($requests))
        select r.seq, r.tpot_ms > $bound as over, count(s.seq) as arrivals
        from read_parquet($requests) r join read_parquet($windows) w on r.window_index = w.index
        left join sent s
        on s.at_ns > r.due_ns + r.send_offset_ns and s.at_ns < r.due_ns + r.last_token_offset_ns
        where w.index = $worst and r.due_ns >= w.window_start_ns and r.due_ns < w.window_end_ns
        group by all order by r.seq
        """,
        {
            "requests": str(GOLDEN / "requests" / "*.parquet"),
            "windows": str(GOLDEN / "windows.parquet"),
            "worst": left["worst"].window["index"],
            "bound": left["worst"].bound_ms,
        },
    ).fetchall()
    assert left["worst"].limit == "tpot"
    rows = left["worst"].requests.select(["seq", "over", "arrivals"]).to_pylist()
    assert {row["seq"]: (row["over"], row["arrivals"]) for row in rows} == {
        seq: (over, arrivals) for seq, over, arrivals in counted
    }
    output = capsys.readouterr().out
    for over in (False, True):
        mean = statistics.mean(arrivals for _, it, arrivals in counted if it is over)
        assert f" {mean:.1f}" in output


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_uses_the_names_that_analysis_offers(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not [name for name in imported if str(name).startswith(("analysis.", "conf"))]
    used = re.findall(r"\banalysis\.([a-zA-Z_]+)", ast.unparse(tree))
    assert set(used) <= {*analysis.__all__, "__file__"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_parameters_cell_and_no_outputs(path: Path) -> None:
    cells = jupytext.read(path).cells
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells) == 1
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
def test_one_is_executed_in_jupyter_as_the_document_says(tmp_path: Path) -> None:
    said = (ROOT / "docs" / "run_folder.md").read_text()
    command = ".venv/bin/jupytext --to notebook --execute --output report.ipynb"
    assert f"{command} analysis/notebooks/capacity_of_one_run.py" in said
    source, out = FOLDER / "capacity_of_one_run.py", tmp_path / "report.ipynb"
    words = [*command.split()[1:-1], str(out), str(source)]
    subprocess.run([sys.executable, "-m", "jupytext", *words], cwd=ROOT, check=True, capture_output=True)
    cells = nbformat.read(out, as_version=4).cells
    shown = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    assert any("estimate_qps_per_node" in output.get("data", {}).get("text/html", "") for output in shown)
