"""docs/run_folder.md: every column as the schemas have it, and every line of code as it runs."""

import ast
import re
from typing import Any

import duckdb
import pytest

from analysis import load_run
from analysis.results import tables
from tests.support.runs.column_tables import DOCUMENT, SCHEMAS, document
from tests.support.runs.golden import GOLDEN

CODE = re.findall(r"```(python|sql)\n(.*?)```", DOCUMENT.read_text().replace("RUN", str(GOLDEN)), re.S)


def test_the_tables_of_columns_are_those_of_the_schemas() -> None:
    assert document() == DOCUMENT.read_text(), "python -m tests.support.runs.column_tables writes them anew"
    for schema in SCHEMAS.values():
        for field in schema:
            assert f"| `{field.name}` |" in document()


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


def test_each_way_to_open_it_gives_the_same_figures() -> None:
    expected = tables.percentiles(load_run(GOLDEN))["ttft_p90_ms"].to_pylist()
    own, by_duckdb, by_polars, by_pandas = (value(*block) for block in CODE)
    assert own.num_rows == 1
    assert [p90 for _, p90 in by_duckdb] == pytest.approx(expected)
    assert by_polars["ttft_ms"].to_list() == pytest.approx(expected)
    assert by_pandas.to_list() == pytest.approx(expected)
