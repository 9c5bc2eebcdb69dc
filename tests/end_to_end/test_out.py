"""--out of loadgen.run.export and analysis: a file holds what its name promises, or is not written."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import __main__ as reading
from analysis.exchange import FORMATS
from loadgen.cli import output
from tests.support.runs.golden import GOLDEN

TABLE = pa.table(
    {"layout": ["a, b", None], "qps_per_node": [5.25, float("nan")], "ttft_p90_ms": [float("inf"), 1.0]}
)
TREE = {"cells": [{"qps": float("nan")}, {"qps": 5.25}]}


def test_an_answer_is_written_as_its_suffix_says(tmp_path: Path) -> None:
    for suffix in output.SUFFIXES:
        output.write(tmp_path / f"answer{suffix}", TABLE, TREE)
    assert pq.read_table(tmp_path / "answer.parquet").schema == TABLE.schema
    assert (tmp_path / "answer.csv").read_text().splitlines() == [
        '"layout","qps_per_node","ttft_p90_ms"',
        '"a, b",5.25,inf',
        ",,1",
    ]
    assert json.loads((tmp_path / "answer.json").read_text()) == {"cells": [{"qps": None}, {"qps": 5.25}]}
    with pytest.raises(ValueError, match="must end in one of .parquet, .csv, .json"):
        output.write(tmp_path / "answer", TABLE, TREE)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("words", "name", "asks"),
    [
        (["plan", str(GOLDEN), "demand.peak_qps=9"], "plan.csv", ".json or .html or .htm"),
        (["calibrate", str(GOLDEN)], "node7", ".yaml or .yml"),
        (["report", str(GOLDEN)], "page.pdf", ".html"),
        (["export", str(GOLDEN), "--format", "csv"], "rows.parquet", ".csv"),
        (["export", str(GOLDEN), "--format", "jsonl"], "rows.csv", ".jsonl or .ndjson"),
    ],
)
def test_a_name_that_promises_something_else_is_refused(
    words: list[str], name: str, asks: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reading.main([*words, "--out", str(tmp_path / name)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: --out ") and said.err.endswith(f"give it a name in {asks}\n")
    assert said.err.count("\n") == 1 and not said.out and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_format_has_a_name(tmp_path: Path) -> None:
    for format, suffixes in FORMATS.items():
        for suffix in suffixes:
            out = tmp_path / f"{format}{suffix}"
            assert reading.main(["export", str(GOLDEN), "--format", format, "--out", str(out)]) == 0
            assert out.stat().st_size > 0
