"""analysis.figures: what is drawn is true, in words too, always the same, not by colour alone."""

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from analysis import load_run, plot_latency
from analysis.figures import EXHIBITS, NoData, RunData, canvas, service
from analysis.figures.comparison import Comparison, capacity_rows
from analysis.figures.exhibit import FAIL, PASS, Exhibit
from analysis.figures.latency import Cdf, Latency, ShareOver
from analysis.figures.load import ClientLag, Search
from analysis.figures.service import Pareto, ReplicaBalance, Scaling, Timeline
from analysis.planning.sizing import ScalingEfficiency, ScalingPoint
from analysis.results.experiment_facts import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import StudyVerdict
from conf.specs.experiment import ExternalEngine
from tests.support.runs.run_in_memory import (
    GOLDEN,
    RunInMemory,
    concluded,
    failed,
    golden_config,
    request,
    window,
)
from tests.support.words.words import TABLES

MOST_BYTES = 48_000


def spread(window_index: int, start_s: float, count: int = 20, **more: Any) -> list[dict[str, Any]]:
    """Requests half a second apart, of TTFT 100, 101, ... ms."""
    return [request(window_index, start_s + i / 2, 100.0 + i, **more) for i in range(count)]


def faulty() -> RunInMemory:
    """Three windows out of the order of their rates: one within, one failing with failures, one void."""
    planned = [
        *spread(0, 0.0, replica_id="a"),
        *spread(1, 10.0, 15, replica_id="b"),
        *[
            failed(1, 17.5 + i / 2, error_kind="server_error", http_status=503, error="full")
            for i in range(5)
        ],
        *spread(2, 20.0, 18),
        *[failed(2, 29.0 + i / 2, "missed", error_kind="late") for i in range(2)],
    ]
    each = [
        {"replica_id": name, "requests": count, "ttft_p90_ms": 110.0}
        for name, count in (("a", 30), ("b", 10))
    ]
    lines = [
        window(0, 6.0, 0, 10, requests=20, goodput_qps_per_node=2.0, by_replica=each),
        window(1, 4.0, 10, 20, requests=20, failed=5, goodput_qps_per_node=1.5, ttft_p90_ms=math.inf),
        window(2, 5.0, 20, 30, requests=20, valid=False, void_reason="client_limited", weight=0.0),
    ]
    return RunInMemory(planned, lines, concluded())


@pytest.fixture(scope="module")
def golden() -> Any:
    return load_run(GOLDEN)


def read(exhibit: type[Exhibit], run: Any) -> Exhibit:
    return exhibit(RunData(run))


def rows(exhibit: type[Exhibit], run: Any) -> list[dict[str, Any]]:
    return read(exhibit, run).table().to_pylist()


def drawn(exhibit: type[Exhibit], run: Any) -> Figure:
    return read(exhibit, run).figure()


def names(figure: Figure) -> list[str]:
    """What the legend names."""
    return [text.get_text() for text in figure.legends[0].get_texts()]


def ids(svg: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', svg))


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["golden", "faulty"])
def test_every_figure_is_small_whole_svg_that_shares_a_page(subject: str, golden: Any) -> None:
    run = golden if subject == "golden" else faulty()
    seen: set[str] = set()
    for exhibit in EXHIBITS:
        try:
            shown = read(exhibit, run)
        except NoData as error:
            assert str(error) and "\n" not in str(error)
            continue
        svg, table, words = shown.svg(), shown.table(), shown.alt()
        assert len(svg.encode()) <= MOST_BYTES, exhibit.name
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg") and "<style" not in svg and "<metadata" not in svg
        assert not seen & ids(svg), exhibit.name
        seen |= ids(svg)
        used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
        assert used <= ids(svg), exhibit.name
        assert "<text" in svg  # readable text, not outlines
        colours = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", svg))
        assert colours and colours <= canvas.DARK.keys(), exhibit.name
        no_series_is_told_by_its_colour_alone(exhibit.name, shown.figure())
        nothing_is_cut_off(exhibit.name, shown.figure())
        assert re.search(r"\d", words) and words.endswith(".") and "nan" not in words
        assert 0 < table.num_rows <= 30 and len(set(table.column_names)) == table.num_columns
        assert exhibit.source and exhibit.title
    assert len(seen) > 10


def no_series_is_told_by_its_colour_alone(name: str, figure: Figure) -> None:
    lines = {line.get_label(): line for ax in figure.axes for line in ax.get_lines()}
    looks = [
        (line.get_marker(), line.get_linestyle(), line.get_linewidth(), line.get_fillstyle(), face(line))
        for label, line in lines.items()
        if not str(label).startswith("_")
    ]
    assert len(looks) == len(set(looks)), f"{name}: {looks}"


def nothing_is_cut_off(name: str, figure: Figure) -> None:
    figure.draw_without_rendering()
    box, (width_in, height_in) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width_in and box.y1 <= height_in, (name, box)


def test_one_figure_twice_on_a_page_has_ids_of_its_own(golden: Any) -> None:
    one, two = (read(Latency, golden).svg(name) for name in ("one", "two"))
    assert ids(one) and not ids(one) & ids(two)


def test_no_text_is_taken_for_mathematics_or_misses_a_letter(recwarn: pytest.WarningsRecorder) -> None:
    said = "$\\frac$ <b> \u4e2d"
    svg = canvas.svg(lambda figure: canvas.note(figure.subplots(), 0.5, 0.5, said), 3.0, "a")
    assert "$\\frac$ &lt;b&gt; \u4e2d" in svg and not list(recwarn)


def face(line: Any) -> bool:
    """Whether the marker is hollow."""
    return line.get_markerfacecolor() == canvas.PAPER


def test_a_run_without_windows_says_so_or_shows_what_it_has() -> None:
    killed = RunInMemory(spread(0, 0.0))
    for exhibit in EXHIBITS:
        if exhibit is Timeline:
            assert drawn(exhibit, killed).axes
        else:
            with pytest.raises(NoData):
                read(exhibit, killed)
    with pytest.raises(NoData, match="no requests"):
        read(Timeline, RunInMemory([]))


def test_latency_belongs_to_its_own_window_whatever_the_order_of_the_rates() -> None:
    run = faulty()
    outcomes = [(row["window"], row["rate_qps_per_node"], row["outcome"]) for row in rows(Latency, run)]
    assert outcomes == [
        (0, 6.0, "pass"),
        (1, 4.0, "fail"),
        (2, 5.0, "void"),
    ]
    many = [request(0, i / 5, 100.0 + i % 10) for i in range(3000)]
    more = [request(1, 600 + i / 5, 900.0 + i % 10) for i in range(3000)]
    lines = [window(0, 6.0, 0, 600), window(1, 4.0, 600, 1200)]
    first, second = rows(Latency, RunInMemory(many + more, lines, concluded()))
    assert 100 < first["ttft_p90_low_ms"] <= first["ttft_p90_high_ms"] < 120
    assert 900 < second["ttft_p90_low_ms"] <= second["ttft_p90_high_ms"] < 920
    assert "infinite" in read(Latency, run).alt()


def test_a_void_run_gets_no_capacity_a_valid_one_its_band_and_an_open_one_a_bound() -> None:
    run = faulty()
    assert "capacity: 5.00 [4.00, 6.00]" in names(drawn(Latency, run))
    assert "certified 4.20" in read(Latency, run).alt()
    void = run.but(sweep=concluded(valid=False))
    assert not [name for name in names(drawn(Latency, void)) if "capacity" in name or "certified" in name]
    assert "No capacity is claimed" in read(Latency, void).alt()
    assert any("answer" in name for name in names(drawn(Search, run)))
    assert not [name for name in names(drawn(Search, void)) if "answer" in name]
    at_least = run.but(sweep=concluded(open_above=True))
    assert "at least 4.00" in read(Latency, at_least).alt()
    shown = names(drawn(Latency, at_least))
    assert "capacity: at least 4.00" in shown and not [name for name in shown if "certified" in name]


def test_failures_keep_a_curve_below_one() -> None:
    lowest, highest = drawn(Cdf, faulty()).axes[0].get_lines()[:2]
    ends = [line.get_ydata()[np.isfinite(line.get_xdata())][-1] for line in (lowest, highest)]
    assert ends == [0.75, 1]
    windows = rows(Cdf, faulty())
    assert [row["rate_qps_per_node"] for row in windows] == [4.0, 6.0]  # the void window is left out
    assert windows[0]["ttft_within_bound_pct"] == 75 and windows[0]["ttft_p90_ms"] == math.inf
    assert any("5 failed" in name for name in names(drawn(Cdf, faulty())))
    void = [window(0, 6.0, 0, 10, valid=False)]
    with pytest.raises(NoData, match="void"):
        read(Cdf, RunInMemory(spread(0, 0.0), void, concluded()))


def test_what_never_left_is_later_than_any_send() -> None:
    windows = rows(ClientLag, faulty())
    assert [row["never_sent"] for row in windows] == [0, 0, 2] and windows[0]["gate_p99_ms"] == 20
    assert windows[2]["lag_p99_ms"] == math.inf and windows[2]["lag_longest_sent_ms"] == 1
    (panel,) = drawn(ClientLag, faulty()).axes
    worst = next(line for line in panel.get_lines() if "worst" in str(line.get_label()))
    assert worst.get_ydata()[-1] == pytest.approx(0.1)  # 2 of 20
    assert "infinite ms of p99 send lag; 20 ms allowed; 0 to 2 requests" in read(ClientLag, faulty()).alt()


def test_a_replica_that_never_answered_is_in_the_balance() -> None:
    experiment = faulty().config
    layout = replace(experiment.layout, replicas_per_node=3, tensor_parallel=2)
    run = faulty().but(config=replace(experiment, layout=layout))
    shown = read(ReplicaBalance, run)
    assert [(row["replica"], row["requests"]) for row in shown.rows] == [
        ("a", 30),
        ("b", 10),
        ("no answer 1", 0),
    ]
    assert len(shown.figure().axes) == 2
    shares = [(row["replica"], row["share_pct"]) for row in rows(ReplicaBalance, faulty())]
    assert shares == [("a", 75), ("b", 25)]
    void = faulty().but(lines=[window(0, 6.0, 0, 10, valid=False)])
    alone = [{"replica_id": "a", "requests": 3, "ttft_p90_ms": 1.0}]
    one = faulty().but(lines=[window(0, 6.0, 0, 10, by_replica=alone)])
    for run, why in ((void, "every window is void"), (one, "one replica")):
        with pytest.raises(NoData, match=why):
            read(ReplicaBalance, run)


def test_in_flight_and_rolling_quantiles() -> None:
    at = np.array([0.0, 1.0, 2.0, 3.0])
    sent, ended = np.array([0.5, 1.5, np.nan, 0.0]), np.array([2.5, np.nan, 1.0, 1.0])
    assert service.in_flight(sent, ended, at).tolist() == [1, 1, 1, 0]
    due = np.arange(30.0)
    values = np.where(due < 28, due, math.inf)
    rolled = service.rolling_p90(due, values, np.array([5.0, 14.0, 29.0]))
    assert np.isnan(rolled[0]) and rolled[1] == pytest.approx(12.6) and rolled[2] == math.inf
    assert np.isnan(service.rolling_p90(due, np.full(30, np.nan), due)).all()


def test_server_state_adds_replicas_and_survives_a_restart() -> None:
    def sample(replica: str, at_s: int, hits: int, queries: int, running: int) -> dict[str, Any]:
        counters = {"prefix_hits": hits, "prefix_queries": queries}
        return {"clock_ns": at_s * 10**9, "replica": replica, "running": running, "kv_usage": 0.5} | counters

    told = [
        *(sample("a", t, 5 * t, 10 * t, 2) for t in range(4)),
        *(sample("b", t, 0, 10 * t if t < 2 else 0, 1) for t in range(4)),  # begins anew at 2
    ]
    state = service.server_state(
        RunInMemory([], told=told).timeseries(), np.array([0.0, 1.0, 2.0, 3.0, 20.0])
    )
    assert state["running"].tolist()[:4] == [3, 3, 3, 3] and np.isnan(state["running"][4])  # stale
    assert state["kv use"][0] == 50 and np.isnan(state["waiting"]).all()
    assert state["prefix hit"][1:4] == pytest.approx([25, 50, 50]) and np.isnan(state["prefix hit"][0])


def test_tokens_are_counted_where_they_came() -> None:
    came_in = [
        request(0, 0.0, 0.0, 1000.0),  # 11 tokens from 0 to 10 s
        request(0, 6.0, 500.0, 0.0, output_tokens=1),  # at 6.5 s
        failed(0, 5.0),
    ]
    run = RunInMemory(came_in, [window(0, 1.0, 2, 7)], concluded())
    assert service.output_tokens(run.requests(), 2, 7) == pytest.approx(11 / 2 + 1)
    assert service.output_tokens(run.requests(), 0, 20) == pytest.approx(12)
    busy = RunInMemory([request(0, t, 0.0, 50.0) for t in range(10)], [window(0, 1.0, 0, 10)], concluded())
    (row,) = rows(Pareto, busy)
    assert row["interactivity_median_tok_per_s_user"] == pytest.approx(20)
    assert row["gpus"] == 8 and row["output_tok_per_s_gpu"] == pytest.approx(11 * 10 / 10 / 8, rel=0.02)


def test_unknown_gpus_are_not_guessed() -> None:
    run = faulty()
    experiment = replace(
        run.config, engine=ExternalEngine(), target=replace(run.config.target, urls=["http://a:1"])
    )
    with pytest.raises(NoData, match="GPUs"):
        read(Pareto, run.but(config=experiment))


def test_the_path_of_the_search_is_that_of_its_events(golden: Any) -> None:
    path = rows(Search, golden)
    done = [event for event in golden.events() if event["event"] == "window_done"]
    assert [row["posterior_qps_per_node"] for row in path] == [e["capacity"]["qps_per_node"] for e in done]
    assert [row["rate_qps_per_node"] for row in path] == golden.windows()["rate_qps_per_node"].to_pylist()


@pytest.mark.slow
def test_strange_runs_are_drawn_or_refused_with_a_reason() -> None:
    whole = [request(0, i / 2, 100.0, 0.0) for i in range(20)]  # answers in one piece: no time per token
    lost = [failed(0, i / 2) for i in range(20)]
    unknown = {f"{limit}_p{q}_ms": None for limit in ("ttft", "tpot") for q in (50, 90, 99)}
    one = window(0, 2.0, 0, 10)
    for run in (
        RunInMemory(whole, [one | {"tpot_p50_ms": 0.0, "tpot_p90_ms": 0.0, "tpot_p99_ms": 0.0}], concluded()),
        RunInMemory(lost, [one | dict.fromkeys(unknown, math.inf)], concluded()),
        RunInMemory([request(0, 5.0)], [one | unknown | {"goodput_qps_per_node": None}], concluded()),
        RunInMemory(whole, [one | {"concurrency": 8}, one | {"kind": "ramp", "index": 1}], concluded()),
        RunInMemory(whole, [one | {"kind": "ramp"}], None),
    ):
        for exhibit in EXHIBITS:
            try:
                shown = read(exhibit, run)
                assert shown.figure().axes and shown.table().num_rows and shown.alt()
            except NoData as error:
                assert str(error)


def test_the_certified_rate_and_the_ramp_are_in_the_picture() -> None:
    ramp = [window(3, 3.0, 30, 35, kind="ramp"), window(4, 0.1, 35, 40, kind="ramp")]
    far = concluded(qps_per_node={"value": 5.0, "low": 1.0, "high": 90.0, "certified": 1.5})
    run = faulty().but(sweep=far, lines=[*faulty().lines, *ramp])
    figure = drawn(Latency, run)
    for panel in figure.axes:
        left, right = panel.get_xlim()
        assert left < 1.5 and right < 20
    assert "certified 1.50" in names(figure)
    assert any("step of the ramp" in name for name in names(drawn(Search, run)))


def test_a_notebook_gets_a_figure_to_go_on_with(golden: Any, tmp_path: Path) -> None:
    figure = plot_latency(golden)
    ttft, tpot = figure.axes
    assert ttft.get_ylabel() == "TTFT (ms)" and len(tpot.get_lines()) > 4
    ttft.set_title("mine")
    figure.savefig(tmp_path / "mine.png")
    assert (tmp_path / "mine.png").stat().st_size > 10_000
    assert not pyplot.get_fignums()  # Jupyter would show it twice


def q(estimate: float, low: float, high: float) -> dict[str, float]:
    return {"value": estimate, "low": low, "high": high, "certified": (low + estimate) / 2}


def run(name: str, estimate: float, low: float, high: float, **more: Any) -> RunInMemory:
    sweep = concluded(qps_per_node=q(estimate, low, high), **more)
    return RunInMemory([], sweep=sweep, name=name)


def part(name: str, figures: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "at": {}, "qps_per_node": figures, "exit_code": 0, "reason": ""} | more


def study(tree: dict[str, Any]) -> StudyVerdict:
    rest = {"experiment": to_tree(describe(golden_config())), "names": [], "parts": [], "exit_code": 0}
    return from_tree(StudyVerdict, rest | tree, "a test")


def compared(tree: dict[str, Any]) -> Comparison:
    return Comparison(study(tree))


BOUND = {"value": 8.0, "low": 8.0, "high": None, "certified": None}
REPEATED, MATRIX = TABLES["studies to draw"]
MEASURED = ScalingEfficiency(
    (ScalingPoint(1, 5.0, 0.02), ScalingPoint(2, 4.8, 0.02), ScalingPoint(4, 4.5, 0.02))
)


def test_repeats_show_every_part_and_what_they_say_together() -> None:
    rows = compared(REPEATED).table().to_pylist()
    assert [row["part"] for row in rows] == ["1", "2", "3", "mean of the repeats"]
    assert rows[2]["qps_per_node"] is None and rows[2]["why_not"] == "void"
    assert (rows[3]["qps_per_node"], rows[3]["low_qps_per_node"]) == (5.2, 4.8)
    assert "mean of the repeats: 5.20 [4.80, 5.60]" in compared(REPEATED).alt()
    assert len(compared(REPEATED | {"valid": False}).rows) == 3


def test_what_is_void_or_open_has_no_interval_of_its_own() -> None:
    unclaimed = RunInMemory([], sweep=concluded(valid=False), name="void")
    with pytest.raises(NoData):
        capacity_rows([unclaimed])
    assert capacity_rows([run("a", 5, 4, 6), unclaimed])[1].words == "client_limited"
    void = part("2", q(9, 8, 20), exit_code=4, reason="void")
    parts = capacity_rows(study(REPEATED | {"parts": [part("1", q(5, 4, 6)), void]}))
    assert [one.words for one in parts] == ["5.00 [4.00, 6.00]", "void"]
    ends = part("3", BOUND, exit_code=6, reason="open")
    assert capacity_rows(study(MATRIX | {"cells": [ends]}))[0].words == "at least 8.00"


def test_ratios_of_a_matrix_are_those_it_found() -> None:
    rows = compared(MATRIX).table().to_pylist()
    assert [row["ratio_to_first"] for row in rows] == [None, 1.4, 1.0, None, None]
    assert [row["ratio_is"] for row in rows] == ["", "paired", "unpaired", "", ""]
    assert "b: 7.00 [6.00, 8.00], 1.40 [1.30, 1.50] times the first (paired)" in compared(MATRIX).alt()


def test_the_ratio_of_a_comparison_is_paired_and_that_of_runs_is_not() -> None:
    ratio = {"estimate": q(0.9, 0.8, 0.95), "limits": {}, "pairs": 3, "correlation": None, "unlike": False}
    tree = {"study": "compare", "valid": True, "ratio": ratio}
    tree |= {"parts": [part("a", q(5, 4, 6)), part("b", q(7, 6, 8))]}
    assert [row["ratio_to_first"] for row in compared(tree).rows] == [None, 0.9]
    assert [row["ratio_to_first"] for row in compared(tree | {"valid": False}).rows] == [None, None]
    runs = Comparison([run("a", 5, 4, 6), run("b", 6, 5, 7)]).rows
    assert runs[1]["ratio_to_first"] == pytest.approx(1.2) and runs[1]["ratio_is"] == "unpaired"
    assert runs[1]["ratio_low"] < 1 < runs[1]["ratio_high"]


def test_runs_of_one_name_have_as_many_folders_before_it_as_tell_them_apart(tmp_path: Path) -> None:
    names = ["a/x/run", "b/x/run", "other"]
    runs = [load_run(shutil.copytree(GOLDEN, tmp_path / name)) for name in names]
    assert [row.name for row in capacity_rows(runs)] == names


def test_efficiency_is_one_at_the_first_point_by_definition() -> None:
    rows = Scaling(MEASURED).rows
    assert [row["e"] for row in rows] == pytest.approx([1, 0.96, 0.9])
    assert rows[0]["e_low"] is None and rows[2]["e_low"] < 0.9 < rows[2]["e_high"]
    with pytest.raises(NoData, match="assumption"):
        Scaling(ScalingEfficiency((ScalingPoint(1, 5.0, 0.02),)))


def run_with(*, bounds: dict[str, float], counted: list[dict[str, Any]]) -> RunInMemory:
    """Two windows of one run, whose further bounds were counted so in both."""
    asked = {"slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": None, "at_most_ms": bounds, "joint": 0.9}}
    kept = {"ttft_over": 1, "ttft_determined": 20, "bounds": counted}
    lines = [window(0, 4.0, 0, 10, **kept), window(1, 5.0, 10, 20, **kept)]
    return RunInMemory([request(0, 1.0), request(1, 11.0)], lines, concluded() | {"experiment": asked})


def line(bound: str, over: float, determined: float) -> dict[str, Any]:
    return {"bound": bound, "quantile_ms": None, "over": over, "determined": determined, "phi": None}


def test_each_bound_is_drawn_against_the_share_that_it_allows() -> None:
    counted = [line("itl_p99", 1, 20), line("joint_p90", 1, 20)]
    run: Any = run_with(bounds={"itl_p99": 80.0}, counted=counted)
    shown = ShareOver(RunData(run))
    assert "<svg" in shown.svg()
    table = shown.rows
    assert [(row["bound"], row["over_pct"], row["allowed_pct"]) for row in table[:3]] == [
        ("p90 TTFT", 5.0, 10.0),
        ("p99 ITL", 5.0, 1.0),
        ("90 % of requests within all bounds", 5.0, 10.0),
    ]


def test_a_window_fails_by_any_bound_and_a_bound_that_was_taken_away_fails_nothing() -> None:
    failing: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 1, 20)])
    within: Any = run_with(bounds={"itl_p99": 80.0}, counted=[line("itl_p99", 0, 20)])
    both = RunData(failing), RunData(within)
    assert [data.outcome(data.lines()[0]) for data in both] == [FAIL, PASS]
    assert "tpot" not in RunData(within).bounds_ms
