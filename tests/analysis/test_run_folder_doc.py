"""docs/run_folder.md and docs/columns.md: columns as the schemas have them, lines of code as they run."""

import ast
import math
import re
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis import load_run
from analysis.results import tables
from analysis.rows import metrics, records
from tests.support.runs.golden import GOLDEN, unsealed
from tests.support.runs.made_tables import DOCUMENTS, PAGES, SCHEMAS, document

DOCUMENT = DOCUMENTS / "run_folder.md"


def test_tables_of_columns_and_reasons_are_those_of_the_code() -> None:
    for page, names in PAGES.items():
        remedy = "python -m tests.support.runs.made_tables writes them anew"
        assert document(page) == (DOCUMENTS / page).read_text(), remedy
        for field in (field for name in names for field in SCHEMAS.get(name, ())):
            assert f"| `{field.name}` |" in document(page)
    assert sorted(name for names in PAGES.values() for name in names) == sorted([*SCHEMAS, "reasons"])


def test_every_file_of_a_run_is_named() -> None:
    text = DOCUMENT.read_text()
    for path in GOLDEN.rglob("*"):
        if path.is_file():
            name = re.sub(r"from-\d+", "from-*", str(path.relative_to(GOLDEN)))
            assert f"| `{name}` |" in text


def value(language: str, code: str) -> Any:
    """What the last statement of a block of code says."""
    if language == "sql":
        return duckdb.connect().execute(code).fetchall()
    known: dict[str, Any] = {}
    *before, last = ast.parse(code).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "document", "exec"), known)
    return eval(compile(ast.Expression(last.value), "document", "eval"), known)


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """The golden run with failures: every 20th request of window 1, every 5th of 2, and all of 3."""
    path = unsealed(Path(shutil.copytree(GOLDEN, tmp_path / "failing")))
    lines = load_run(path).requests().to_pylist()
    every = {1: 20, 2: 5, 3: 1}
    for line in lines:
        if line["window_index"] in every and line["seq"] % every[line["window_index"]] == 0:
            line["status"] = "timeout"
    records.write(metrics.with_latencies(records.table(lines)), path / "requests" / "part-000.parquet")
    return path


def test_each_way_to_open_it_gives_the_same_figures_and_failures_are_infinite(failing: Path) -> None:
    """Among failures DuckDB and pandas subtract infinity from itself: their nan is our infinity."""
    for run, reached in ((GOLDEN, []), (failing, [2, 3])):
        code = re.findall(r"```(python|sql)\n(.*?)```", DOCUMENT.read_text().replace("RUN", str(run)), re.S)
        expected = tables.percentiles(load_run(run))["ttft_p90_ms"].to_pylist()
        assert [index for index, p90 in enumerate(expected) if math.isinf(p90)] == reached
        own, by_duckdb, by_polars, by_pandas = (value(*block) for block in code[:4])
        assert own.num_rows == 1
        for found in ([p90 for _, p90 in by_duckdb], by_polars["ttft_ms"].to_list(), by_pandas.to_list()):
            assert [p90 if math.isfinite(p90) else math.inf for p90 in found] == pytest.approx(expected)


def test_the_lines_for_a_notebook_run() -> None:
    *_, last = re.findall(r"```(python)\n(.*?)```", DOCUMENT.read_text().replace("RUN", str(GOLDEN)), re.S)
    assert len(value(*last).axes) == 2


def test_percentiles_of_the_file_are_those_of_windows_parquet() -> None:
    run, names = load_run(GOLDEN), [f"{m}_p{q}_ms" for m in ("ttft", "tpot") for q in (50, 90, 99)]
    rows = [tables.percentiles(run, metric, (0.5, 0.9, 0.99)).to_pylist() for metric in ("ttft", "tpot")]
    both = [ttft | tpot for ttft, tpot in zip(*rows, strict=True)]
    assert [{name: line[name] for name in names} for line in both] == run.windows().select(names).to_pylist()
