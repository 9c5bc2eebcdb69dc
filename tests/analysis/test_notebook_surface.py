"""What `import analysis` offers a notebook: names to complete, short reprs, latencies as columns."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import analysis
from analysis.rows import metrics
from tests.support.runs.golden import GOLDEN
from tests.support.runs.run_folders import studied
from tests.support.runs.run_in_memory import RunInMemory, concluded, failed, request, window


def test_every_name_is_completed_and_can_be_had() -> None:
    assert dir(analysis) == analysis.__all__ == sorted(analysis.__all__)
    assert all(getattr(analysis, name) is not None for name in analysis.__all__)


def test_the_import_waits_for_no_other_package() -> None:
    brought = (
        "import sys; import analysis; print(*{'numpy', 'pyarrow', 'matplotlib', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", brought], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_a_run_is_one_line(tmp_path: Path) -> None:
    run = analysis.load_run(GOLDEN)
    assert repr(run).startswith(f"<Run {GOLDEN}: SIMULATED, VALID  3.32 QPS per node")
    assert "\n" not in repr(run) and len(repr(run)) < 300
    assert str(run.answer()).splitlines()[0] in repr(run)
    assert run.verdict is run.verdict  # parsed once


def test_latencies_are_columns_as_in_the_file() -> None:
    run = analysis.load_run(GOLDEN)
    rows = run.requests(latencies=True)
    written = pq.read_table(GOLDEN / "requests").sort_by("due_ns")
    for name in metrics.NAMES:
        ours, file = (table[name].to_numpy(zero_copy_only=False) for table in (rows, written))
        np.testing.assert_allclose(ours, file, rtol=1e-6)
    frame = run.requests(window_index=2, columns=["seq"], latencies=True).to_pandas()
    assert list(frame.columns) == ["seq", *metrics.NAMES]
    assert frame.ttft_ms.min() > 0 and np.isfinite(frame.tpot_ms).any()


def test_a_study_has_its_parts_and_its_answer(tmp_path: Path) -> None:
    folder = studied(tmp_path / "study", "repeats", "repeat-1", "repeat-2")
    study = analysis.load_study(folder)
    assert [part.name for part in study.parts] == ["repeat-1", "repeat-2"] and study.name == "study"
    assert repr(study).startswith(f"<Study {folder}: VALID") and "\n" not in repr(study)
    assert str(study.answer()).splitlines()[0] in repr(study)
    assert analysis.plot_compare(study).axes
    with pytest.raises(analysis.RunError, match="not a readable study"):
        analysis.load_study(GOLDEN)


def test_the_requests_over_a_bound_are_those_of_the_worst_window() -> None:
    rows = [request(0, i / 2, 100.0) for i in range(10)]
    rows += [request(1, 10 + i / 2, 3000.0 if i > 6 else 100.0) for i in range(10)]
    rows += [failed(1, 19.9)]
    lines = [window(0, 4.0, 0, 10), window(1, 5.0, 10, 20, ttft_p90_ms=3000.0)]
    run = RunInMemory(rows, lines, concluded())
    result = analysis.over_bound(run)
    assert (result.window["index"], result.limit, result.p90_ms, result.bound_ms) == (1, "ttft", 3000, 2000)
    over = [row["seq"] for row in result.requests.to_pylist() if row["over"]]
    assert len(over) == 4 and result.requests["arrivals"].to_pylist()[-1] is None
    assert repr(result) == (
        "<window 1 at 5 QPS per node: p90 TTFT 3000.0 ms, bound 2000 ms, 4 of 11 requests over it>"
    )
