"""analysis.results.energy by known answers: on the screen, in the report and a plan; runs without power."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import planning, report
from analysis.__main__ import main
from analysis.report.blocks import Page, without_empty
from analysis.report.sections import power_sections
from analysis.results import energy
from analysis.results.energy import PowerFigures, figures
from analysis.results.figures import CapacityFigures
from analysis.results.json_border import from_tree, to_tree
from analysis.rows import records
from analysis.views import answers
from analysis.views.plan import answer
from tests.support.runs import run_in_memory
from tests.support.runs.golden import changed, golden
from tests.support.runs.planned_sweeps import sweep
from tests.support.runs.run_in_memory import NS, request
from tests.support.runs.verdict_trees import screen


def window(index: int, start_s: float, end_s: float, rate: float = 10.0, **more: Any) -> dict[str, Any]:
    """A window of two nodes."""
    two = {"nodes": 2, "rate_qps": 2 * rate}
    return run_in_memory.window(index, rate, start_s, end_s) | two | more


def samples(node: str, idle: float, busy: float, seconds: range, **more: Any) -> list[dict[str, Any]]:
    """Eight GPUs of a node, at rest for ten seconds and under load for the others."""
    row = {"at": 0, "node": node, "source": "hwmon", **more}
    return [
        row | {"clock_ns": s * NS, "idle": s < 10, "gpu_watts": [idle if s < 10 else busy] * 8}
        for s in seconds
    ]


def power(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=records.POWER)


def requests(index: int, start_s: float, count: int, **more: Any) -> list[dict[str, Any]]:
    tokens = {"prompt_tokens": 5600, "output_tokens": 140}
    return [request(index, start_s + 0.01 * n, **{**tokens, **more}) for n in range(count)]


TWO = [*samples("a", 130, 700, range(200)), *samples("b", 150, 500, range(200))]
ANSWERED = records.table(
    [*requests(1, 20, 1000), *requests(1, 40, 100, status="timeout", output_tokens=None)]
)
KNOWN = figures(power(TWO), [window(1, 20, 120)], ANSWERED, None)


def test_two_nodes_of_eight_gpus_for_a_hundred_seconds() -> None:
    """5,600 and 4,000 W for 100 s are 960 kJ, 266.7 Wh, of a thousand answers."""
    (one,) = KNOWN.windows
    assert (KNOWN.unknown, KNOWN.of, KNOWN.at, one.coverage) == ("", energy.ALONE, 1, 1.0)
    assert one.watts_per_node == pytest.approx(4800)
    assert one.wh_per_request == pytest.approx(960e3 / 3600 / 1000)
    assert one.kwh_per_1m_output_tokens == pytest.approx(960 / 3600 / (1000 * 140) * 1e6)
    assert one.kwh_per_1m_input_tokens == pytest.approx(960 / 3600 / (1000 * 5600) * 1e6)
    assert KNOWN.idle_watts_per_node == pytest.approx(1120) and one.idle_share == pytest.approx(1120 / 4800)
    a, b = KNOWN.nodes
    assert (a.name, a.gpus_told, a.gpus, a.source) == ("a", 8, 8, "hwmon")
    assert (a.idle_gpu_watts, a.gpu_watts) == (1040, pytest.approx(5600)) and b.gpu_watts == pytest.approx(
        4000
    )
    assert a.meter_watts is None and a.idle_meter_watts is None


def test_meters_of_all_machines_go_before_their_gpus_and_one_alone_does_not() -> None:
    both = [row | {"node_watts": 8000.0 if row["clock_ns"] >= 10 * NS else 2000.0} for row in TWO]
    found = figures(power(both), [window(1, 20, 120)], ANSWERED, None)
    assert found.of == energy.WHOLE and found.windows[0].watts_per_node == pytest.approx(8000)
    assert found.windows[0].idle_share == pytest.approx(0.25) and found.nodes[0].gpu_watts == pytest.approx(
        5600
    )
    one = [row if row["node"] == "a" else other for row, other in zip(both, TWO, strict=True)]
    assert figures(power(one), [window(1, 20, 120)], ANSWERED, None).of == energy.ALONE


def test_a_node_that_does_not_tell_leaves_the_run_unknown() -> None:
    silent = [
        {"at": 0, "clock_ns": s * NS, "node": "c", "idle": s < 10, "error": "no GPU"} for s in range(200)
    ]
    energy = figures(power([*TWO, *silent]), [window(1, 20, 120)], ANSWERED, None)
    assert (
        energy.unknown == "1 of 3 node(s) told no power (c): no GPU"
        and energy.windows == ()
        and energy.quoted is None
    )
    assert [node.gpus_told for node in energy.nodes] == [8, 8, 0]


def test_a_gpu_that_its_tool_does_not_tell_is_no_gpu_of_0_watts() -> None:
    seven = [row | {"gpu_watts": [*row["gpu_watts"][:7], None], "source": "amdsmi"} for row in TWO]
    energy = figures(power(seven), [window(1, 20, 120)], ANSWERED, None)
    assert energy.unknown == "2 of 2 node(s) told no power (a): 7 of its 8 GPUs told theirs"
    # The kernel tells two dies of a GPU once.
    dies = [row | {"gpu_watts": [*row["gpu_watts"], None]} for row in TWO]
    assert figures(power(dies), [window(1, 20, 120)], ANSWERED, None).windows == KNOWN.windows


def test_a_replaced_node_counts_in_the_windows_in_which_it_served() -> None:
    first = samples("b", 150, 500, range(100))
    later = samples("c", 0, 900, range(110, 200))
    rows = [row for row in TWO if row["node"] == "a"] + first + later
    energy = figures(power(rows), [window(1, 20, 90), window(2, 120, 190)], ANSWERED, None)
    assert [one.watts_per_node for one in energy.windows] == [pytest.approx(4800), pytest.approx(6400)]
    assert energy.windows[0].idle_share and energy.windows[1].idle_share is None
    # A node that serves and does not answer is missed.
    alone = [row for row in TWO if row["node"] == "a"]
    assert figures(power(alone), [window(1, 20, 90)], ANSWERED, None).windows[0].watts_per_node is None


def test_without_a_sample_at_rest_the_idle_share_is_unknown() -> None:
    busy = figures(power([row for row in TWO if not row["idle"]]), [window(1, 20, 120)], ANSWERED, None)
    assert busy.windows[0].watts_per_node and busy.windows[0].idle_share is None
    assert "idle share unknown" in dict(answers.power_facts(golden().experiment, busy))["power"]


def test_without_samples_the_reason_is_that_of_the_run() -> None:
    assert figures(power([]), [window(1, 20, 120)], ANSWERED, None, "no GPU") == PowerFigures("no GPU")
    assert figures(power([]), [], ANSWERED, None).unknown == "no node was asked"
    ramp = window(0, 20, 120, kind="ramp")
    assert figures(power(TWO), [ramp], ANSWERED, None).unknown == "no window was measured"


def test_a_window_with_a_gap_has_its_coverage_and_no_figure() -> None:
    rows = [row for row in TWO if not 50 * NS < row["clock_ns"] < 100 * NS]
    energy = figures(power(rows), [window(1, 20, 120), window(2, 130, 180)], ANSWERED, None)
    first, second = energy.windows
    assert (first.watts_per_node, first.wh_per_request) == (None, None)
    assert first.coverage == pytest.approx(0.5) and energy.at == second.index == 2
    # Nobody asked anything in the second window: its power is known, its energy has no one to be shared by.
    assert second.watts_per_node == pytest.approx(4800) and second.wh_per_request is None
    alone = figures(power(rows), [window(1, 20, 120)], ANSWERED, None)
    assert alone.unknown == "no valid window is covered by samples; at most 50% of one" and alone.windows


def test_tokens_that_one_answer_does_not_tell_are_unknown() -> None:
    untold = records.table([*requests(1, 20, 10), *requests(1, 40, 1, prompt_tokens=None)])
    (one,) = figures(power(TWO), [window(1, 20, 120)], untold, None).windows
    assert one.kwh_per_1m_input_tokens is None and one.kwh_per_1m_output_tokens and one.wh_per_request


@pytest.mark.parametrize(("certified", "at"), [(5.0, 1), (11.0, 2), (19.0, 4)])
def test_the_verdict_quotes_the_valid_window_nearest_to_the_capacity(certified: float, at: int) -> None:
    rates = {1: 5.0, 2: 10.0, 3: 19.0, 4: 16.0}
    windows = [window(n, 20 * n, 20 * n + 20, rate=rate, valid=n != 3) for n, rate in rates.items()]
    tree = sweep(4.0, 20.0, 30.0)["capacity"]
    tree["qps_per_node"] |= {"certified": certified}
    capacity = from_tree(CapacityFigures, tree, "a test")
    assert figures(power(TWO), windows, ANSWERED, capacity).at == at


def test_the_screen_says_whose_watts_and_a_run_without_power_says_none() -> None:
    assert golden().power is None and "power" not in screen(golden())
    text = screen(replace(golden(), power=KNOWN))
    assert (
        "power: 4,800 W per node (GPUs alone, 16 GPUs of 2 node(s)) at 10 QPS per node, "
        "1,120 W idle, 23% of it" in text
    )
    assert "energy: 0.267 Wh per request, 0.0476 kWh per 1M input tokens, 1.9 per 1M output tokens" in text
    unknown = replace(golden(), power=PowerFigures("nobody tells"))
    assert "power" not in screen(unknown)  # a simulated engine, of which nobody expects it
    real = replace(unknown, experiment=replace(unknown.experiment, engine="vllm"))
    assert "power: unknown: nobody tells" in screen(real)


def test_the_report_has_a_section_or_says_why_not(tmp_path: Path) -> None:
    """Of the page only the parts that power has a share in: no figure is drawn."""

    def page(figures: PowerFigures | None) -> str:
        sections = without_empty(power_sections(figures))
        return report.html(Page("one", "one", "", None, sections))

    text = page(KNOWN)
    assert 'id="power"' in text and "4,800" in text
    assert "not in the watts of its GPUs" in text
    unknown = page(PowerFigures("nobody <b>tells"))
    assert 'id="power"' not in unknown and "unknown, for nobody &lt;b&gt;tells" in unknown
    assert "Power and energy" not in page(None)


def test_a_plan_takes_the_watts_of_the_run_unless_others_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = changed(tmp_path / "known", power=to_tree(KNOWN))
    words = [str(run), "demand.peak_qps=200", "demand.mean_qps=100"]
    assert main(["plan", *words]) == 0
    assert (
        "power at 4,800 W per node, measured, of GPUs alone, at 10.00 QPS per node, all the time"
        in capsys.readouterr().out
    )
    assert main(["plan", *words, "plan.node_watts=9000"]) == 0
    assert "power at 9,000 W per node, as given, all the time" in capsys.readouterr().out
    unknown = changed(tmp_path / "unknown", power=to_tree(PowerFigures("nobody")))
    tree = planning.command([unknown], words[1:])
    assert tree.power is None and "no node told its watts" in str(answer(tree))
