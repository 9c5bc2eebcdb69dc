"""The notebooks run on the golden run: each as a script, and one as a notebook, as an analyst runs them."""

import ast
import json
import re
import runpy
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import jupytext
import matplotlib
import matplotlib.pyplot as plt
import nbclient
import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from matplotlib.text import Text

import analysis
from analysis.capacity.paired_ratio import Ratio
from analysis.results import studies
from analysis.results.json_border import to_tree
from conf.composed import dump
from tests.support.runs.golden import GOLDEN, unsealed

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "analysis" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def on_the_golden_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("LOADGEN_RUN", "LOADGEN_RUN_B"):  # its own, where no other is named
        monkeypatch.delenv(name, raising=False)
    matplotlib.use("Agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_a_script_and_says_something(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(path))
    said = capsys.readouterr().out
    assert plt.get_fignums() or said
    if path.stem == "layouts_compared":
        assert "no ratio: LOADGEN_RUN_B names no second run" in said
        assert "B / A =" not in said and "published" not in said


def test_the_sides_of_a_comparison_have_its_ratio_in_words_and_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a", "b"]
    for name in names:
        shutil.copytree(GOLDEN, tmp_path / name)
    sweep = analysis.load_run(GOLDEN).sweep
    parts = [to_tree(studies.part_row(name, analysis.load_run(GOLDEN).verdict)) for name in names]
    ratio = asdict(Ratio(0.9, 0.8, 0.95, None, None, 6, None, unlike=False))
    tree = sweep | {"study": "compare", "names": names, "parts": parts, "ratio": ratio}
    (tmp_path / "study.json").write_text(json.dumps(tree))
    monkeypatch.setenv("LOADGEN_RUN", str(tmp_path / "a"))
    monkeypatch.setenv("LOADGEN_RUN_B", str(tmp_path / "b"))
    left = runpy.run_path(str(FOLDER / "layouts_compared.py"))
    assert "B / A = 0.900 [0.800, 0.950] (95 %, the same requests on both)" in capsys.readouterr().out
    texts = left["compared"].figure.findobj(Text)
    assert "0.900 [0.800, 0.950]" in [text.get_text() for text in texts]


def test_sql_reads_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "killed"
    shutil.copytree(GOLDEN, path)
    (path / "sweep.json").unlink()
    rows = analysis.load_run(GOLDEN).requests()
    pq.write_table(rows.slice(0, 600), path / "requests" / "part-000.parquet")
    monkeypatch.setenv("LOADGEN_RUN", str(path))
    left = runpy.run_path(str(FOLDER / "parquet_with_duckdb.py"))
    assert pq.read_table(left["folder"]).select(rows.column_names).num_rows == rows.num_rows


def imported(path: Path) -> set[str]:
    """Packages that a notebook imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).partition(".")[0])
    return found


def other(path: Path, tensor_parallel: int = 4, **sweep: Any) -> Path:
    """The golden run on two replicas per node, with another conclusion."""
    unsealed(Path(shutil.copytree(GOLDEN, path)))
    asked = analysis.load_run(GOLDEN).config
    layout = replace(asked.layout, tensor_parallel=tensor_parallel, replicas_per_node=2)
    (path / "config.yaml").write_text(dump(replace(asked, layout=layout)))
    tree = json.loads((path / "sweep.json").read_text())
    (path / "sweep.json").write_text(json.dumps(tree | sweep))
    return path


@pytest.mark.parametrize(
    ("second", "said", "unsaid"),
    [
        ({"valid": False, "exit_code": 4, "reason": "client_limited"}, "no ratio B / A: B", ("published",)),
        ({}, "published 1.45: outside of the interval", ()),
        ({"tensor_parallel": 2}, "published 1.45 is of two TP4 replicas", ("of the interval",)),
    ],
)
def test_layouts_are_compared_of_two_runs_that_claim_a_capacity(
    second: dict[str, Any],
    said: str,
    unsaid: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LOADGEN_RUN_B", str(other(tmp_path / "b", **second)))
    left = runpy.run_path(str(FOLDER / "layouts_compared.py"))
    out = capsys.readouterr().out
    assert said in out and not any(words in out for words in unsaid)
    assert ("compared" in left) is ("B / A = " in out)


def test_the_worst_window_is_one_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = other(tmp_path / "void")
    table = pq.read_table(path / "dwells.parquet")
    place = table.column_names.index("valid")
    void = table.set_column(place, table.schema.field(place), pa.array([False] * table.num_rows))
    pq.write_table(void, path / "dwells.parquet")
    monkeypatch.setenv("LOADGEN_RUN", str(path))
    with pytest.raises(analysis.NoData, match="no window of this run is valid"):
        runpy.run_path(str(FOLDER / "violated_bound.py"))


def test_arrivals_during_an_answer_are_those_of_sql_over_all_rows_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    left = runpy.run_path(str(FOLDER / "violated_bound.py"))
    counted = duckdb.execute(
        """
        with sent as (select seq, due_ns + send_offset_ns as at_ns from read_parquet($requests))
        select r.seq, r.tpot_ms > $bound as over, count(s.seq) as arrivals
        from read_parquet($requests) r join read_parquet($dwells) w on r.dwell = w.index
        left join sent s
        on s.at_ns > r.due_ns + r.send_offset_ns and s.at_ns < r.due_ns + r.last_token_offset_ns
        where w.index = $worst and r.due_ns >= w.window_start_ns and r.due_ns < w.window_end_ns
        group by all order by r.seq
        """,
        {
            "requests": str(GOLDEN / "requests" / "*.parquet"),
            "dwells": str(GOLDEN / "dwells.parquet"),
            "worst": left["worst"]["index"],
            "bound": left["bounds_ms"]["tpot"],
        },
    ).fetchall()
    assert left["limit"] == "tpot"
    assert dict(zip(left["rows"]["seq"].to_pylist(), left["meanwhile"], strict=True)) == {
        seq: arrivals for seq, _, arrivals in counted
    }
    said = capsys.readouterr().out
    for over in (False, True):
        mean = statistics.mean(arrivals for _, it, arrivals in counted if it is over)
        assert f", {mean:.1f} arrivals during an answer" in said


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_parameters_cell_and_no_outputs(path: Path) -> None:
    cells = jupytext.read(path).cells
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells) == 1
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
def test_one_is_executed_in_jupyter_as_the_document_says(tmp_path: Path) -> None:
    said = (ROOT / "docs" / "notebooks.md").read_text()
    command = ".venv/bin/jupytext --to notebook --execute --output report.ipynb"
    assert f"{command} analysis/notebooks/capacity_of_one_run.py" in said
    source, out = FOLDER / "capacity_of_one_run.py", tmp_path / "report.ipynb"
    if find_spec("nbconvert"):  # comes with '.[dev]' and '.[notebook]'
        words = [*command.split()[1:-1], str(out), str(source)]
        subprocess.run([sys.executable, "-m", "jupytext", *words], cwd=ROOT, check=True, capture_output=True)
        its_figures(nbformat.read(out, as_version=4))
        return
    notebook = jupytext.read(source)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(FOLDER))
    its_figures(notebook)


def its_figures(notebook: Any) -> None:
    """The outputs of the capacity of one run are there."""
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 3
    assert any("estimate_qps_per_node" in output.get("data", {}).get("text/html", "") for output in shown)


def test_what_opens_the_notebooks_is_in_an_extra_of_its_own() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=]", word)[0] for word in extras["notebook"]}
    assert {"jupyterlab", "jupytext", "nbconvert", "ipykernel"} <= names
    needed = {name for path in NOTEBOOKS for name in imported(path)}
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    given = names | {re.split(r"[<>=\[]", word)[0] for word in dependencies}
    assert needed - set(sys.stdlib_module_names) - {"analysis"} <= given
    assert "pandas" in names  # Arrow's to_pandas imports it
