"""analysis.figures of a run: what is drawn is true, in words too, always the same, not by colour alone."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from analysis import load_run, plot_latency
from analysis.figures import EXHIBITS, NoData, RunData, canvas, service, timeline
from analysis.figures.exhibit import Exhibit
from analysis.figures.latency import Cdf, Latency
from analysis.figures.load import ClientLag, Search
from analysis.figures.service import Pareto, ReplicaBalance
from analysis.figures.timeline import Timeline
from conf.specs.experiment import ExternalEngine
from tests.support.runs.run_in_memory import GOLDEN, RunInMemory, concluded, failed, request, window

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


def test_a_void_run_gets_no_capacity_and_a_valid_one_its_band() -> None:
    run = faulty()
    assert "capacity: 5.00 [4.00, 6.00]" in names(drawn(Latency, run))
    assert "certified 4.20" in read(Latency, run).alt()
    void = run.but(sweep=concluded(valid=False))
    assert not [name for name in names(drawn(Latency, void)) if "capacity" in name or "certified" in name]
    assert "No capacity is claimed" in read(Latency, void).alt()
    assert any("answer" in name for name in names(drawn(Search, run)))
    assert not [name for name in names(drawn(Search, void)) if "answer" in name]


def test_an_open_end_is_named_as_a_bound() -> None:
    run = faulty().but(sweep=concluded(open_above=True))
    assert "at least 4.00" in read(Latency, run).alt()
    shown = names(drawn(Latency, run))
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
    assert timeline.in_flight(sent, ended, at).tolist() == [1, 1, 1, 0]
    due = np.arange(30.0)
    values = np.where(due < 28, due, math.inf)
    rolled = timeline.rolling_p90(due, values, np.array([5.0, 14.0, 29.0]))
    assert np.isnan(rolled[0]) and rolled[1] == pytest.approx(12.6) and rolled[2] == math.inf
    assert np.isnan(timeline.rolling_p90(due, np.full(30, np.nan), due)).all()


def test_server_state_adds_replicas_and_survives_a_restart() -> None:
    def sample(
        replica: str, at_s: float, hits: int | None, queries: int | None, running: int
    ) -> dict[str, Any]:
        counters = {"prefix_hits": hits, "prefix_queries": queries}
        return {
            "clock_ns": int(at_s * 1e9),
            "replica": replica,
            "running": running,
            "kv_usage": 0.5,
        } | counters

    told = [
        *(sample("a", t, 5 * t, 10 * t, 2) for t in range(4)),
        *(sample("b", t, 0, 10 * t if t < 2 else 0, 1) for t in range(4)),  # begins anew at 2
    ]
    state = timeline.server_state(
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
