"""loadgen/run/lifecycle.py: whoever followed a run is left with the figures that its folder holds."""

import json
from pathlib import Path
from typing import Any

import pytest

from analysis import load_run
from analysis.live import prometheus_text
from analysis.live.followed import followed
from analysis.live.state import Ending, LiveView
from loadgen.run import lifecycle
from loadgen.run.jobs import SearchCapacity
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.progress import sentence
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start
from tests.support.virtual.virtual_fleet import EXPERIMENT, VirtualFleet, site


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, dict[str, Any]]]]:
    """The folder of a search whose windows ended before their answers, and the events that were shown."""
    folder = RunFolder.create(tmp_path_factory.mktemp("final"), "one")
    told: list[tuple[str, dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "LoadFleet", VirtualFleet)
        show = lambda kind, /, **facts: told.append((kind, facts))  # noqa: E731
        RunLifecycle(SearchCapacity(EXPERIMENT), folder, site(Start(8.0, 3.4)), show).measure()
    return folder.path, told


@pytest.mark.slow
def test_progress_says_which_figures_are_provisional_and_tells_the_final_ones(ran: Any) -> None:
    folder, told = ran
    lines = [sentence(kind, facts) for kind, facts in told if kind in ("window_done", "window_final")]
    final = [line for line in lines if line.startswith("final figures of window")]
    first = [line for line in lines if ", so far p90 TTFT" in line and ": provisional, " in line]
    rows = load_run(folder).windows().to_pylist()
    assert len(first) == len(final) == len(rows) > 2
    assert not any("so far" in line or "provisional" in line for line in final)
    for line, row in zip(final, rows, strict=True):
        assert f"window {row['index']}: " in line and f"p90 TPOT {row['tpot_p90_ms']:.1f} ms" in line
    assert any(
        f"p90 TPOT {row['tpot_p90_ms']:.1f} ms" not in line for row, line in zip(rows, first, strict=True)
    )


@pytest.mark.slow
def test_page_and_metrics_end_with_the_figures_of_the_verdict(ran: Any) -> None:
    folder, told = ran
    view = LiveView()
    for kind, facts in told:
        view.add({"event": kind, **facts})
    view.end(Ending("", 0))
    verdict = json.loads((folder / "sweep.json").read_text())
    figures = verdict["capacity"]["qps_per_node"]
    for snapshot in (view.snapshot, followed(folder).look()):
        shown = {one.index: one.latencies_p90_ms for one in snapshot.state.windows}
        assert shown == {
            row["index"]: {name: row[name] for name in ("ttft_p90_ms", "tpot_p90_ms")}
            for row in verdict["windows"]
        }
        belief = snapshot.state.belief
        assert belief is not None and belief.certified == figures["certified"]
        assert (belief.qps_per_node, belief.low, belief.high) == (
            figures["value"],
            figures["low"],
            figures["high"],
        )
        assert not any(one.pending for one in snapshot.state.windows)
        metrics = prometheus_text.metrics_page(snapshot).decode()
        answered = sum(row["completed"] for row in verdict["windows"])
        assert f" {figures['certified']}\n" in metrics
        assert f'status="answered",verb="sweep"}} {answered}.0\n' in metrics
