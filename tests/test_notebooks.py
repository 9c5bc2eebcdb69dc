"""The notebooks run on the golden run: each as a script, and one as a notebook, as an analyst runs them."""

import runpy
from collections.abc import Iterator
from pathlib import Path

import jupytext
import matplotlib
import matplotlib.pyplot as plt
import nbclient
import pytest

from tests.golden import GOLDEN

FOLDER = Path(__file__).parent.parent / "analysis" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def on_the_golden_run(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LOADGEN_RUN", str(GOLDEN))
    monkeypatch.delenv("LOADGEN_RUN_B", raising=False)
    matplotlib.use("Agg")
    yield
    plt.close("all")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_a_script_and_says_something(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(path))
    assert plt.get_fignums() or capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_parameters_cell_and_no_outputs(path: Path) -> None:
    cells = jupytext.read(path).cells
    assert sum("parameters" in cell.metadata.get("tags", []) for cell in cells) == 1
    assert cells[0].cell_type == "markdown" and cells[0].source.startswith("# ")
    assert not any(cell.get("outputs") for cell in cells)


@pytest.mark.slow
def test_one_runs_in_jupyter_with_its_figures(tmp_path: Path) -> None:
    notebook = jupytext.read(FOLDER / "capacity_of_one_run.py")
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute(cwd=str(FOLDER))
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in shown) == 4
    assert any("estimate_qps_per_node" in output.get("data", {}).get("text/html", "") for output in shown)
