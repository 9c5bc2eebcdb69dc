"""analysis.figures of a run: what is drawn is true, in words too, always the same, not by colour alone."""

import math
import re
from dataclasses import replace
from functools import partial
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import figures, load_run
from analysis.capacity import client_checks
from analysis.figures import EXHIBITS, NoData, canvas, cdf, server_state, timeline
from analysis.figures.exhibit import Exhibit
from analysis.figures.windows import share
from analysis.results import per_gpu
from conf.specs.experiment import ExternalEngine
from tests.support.runs.run_in_memory import GOLDEN, RunInMemory, concluded, failed, request, window

MOST_BYTES = 48_000
REPLICAS = figures.replicas.EXHIBIT


def spread(dwell: int, start_s: float, count: int = 20, **more: Any) -> list[dict[str, Any]]:
    """Requests half a second apart, of TTFT 100, 101, ... ms."""
    return [request(dwell, start_s + i / 2, 100.0 + i, **more) for i in range(count)]


def faulty() -> RunInMemory:
    """Three windows out of the order of their rates: one within, one failing with failures, one void."""
    rows = [
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
    return RunInMemory(rows, lines, concluded())


@pytest.fixture(scope="module")
def golden() -> Any:
    return load_run(GOLDEN)


def drawn(exhibit: Exhibit, subject: Any) -> list[Axes]:
    """The figure's panels."""
    ax = Figure(figsize=(canvas.WIDTH_IN, exhibit.height_in)).add_subplot()
    found = exhibit.plot(subject, ax)
    assert found is ax
    return [ax, *ax.child_axes]


def names(panels: list[Axes]) -> list[str]:
    """What the legends name."""
    return [text for panel in panels for text in panel.get_legend_handles_labels()[1]]


def ids(svg: str) -> set[str]:
    return set(re.findall(r' id="([^"]+)"', svg))


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["golden", "faulty"])
def test_every_figure_is_small_whole_svg_that_shares_a_page(subject: str, golden: Any) -> None:
    run = golden if subject == "golden" else faulty()
    seen: set[str] = set()
    for exhibit in EXHIBITS:
        kept: list[Axes] = []
        keeping = replace(exhibit, plot=partial(kept_plot, exhibit, kept))
        try:
            svg, table, words = keeping.svg(run), exhibit.table(run), exhibit.alt(run)
        except NoData as error:
            assert str(error) and "\n" not in str(error)
            continue
        assert len(svg.encode()) <= MOST_BYTES, exhibit.name
        root = ElementTree.fromstring(svg)
        assert root.tag.endswith("svg") and "<style" not in svg and "<metadata" not in svg
        assert not seen & ids(svg), exhibit.name
        seen |= ids(svg)
        used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
        assert used <= ids(svg), exhibit.name
        assert "<text" in svg  # readable text, not outlines
        no_series_is_told_by_its_colour_alone(exhibit, kept)
        assert re.search(r"\d", words) and words.endswith(".") and "nan" not in words
        assert 0 < table.num_rows <= 30 and len(set(table.column_names)) == table.num_columns
        assert exhibit.source and exhibit.title
    assert len(seen) > 10


def kept_plot(exhibit: Exhibit, kept: list[Axes], subject: Any, ax: Axes) -> Axes:
    """Draw as the exhibit does, and keep the panels."""
    kept += [exhibit.plot(subject, ax), *ax.child_axes]
    return ax


def no_series_is_told_by_its_colour_alone(exhibit: Exhibit, panels: list[Axes]) -> None:
    for panel in panels:
        looks = [
            (line.get_marker(), line.get_linestyle(), line.get_linewidth(), line.get_fillstyle(), face(line))
            for line in panel.get_lines()
            if line.get_label() and not str(line.get_label()).startswith("_")
        ]
        assert len(looks) == len(set(looks)), f"{exhibit.name}: {looks}"


def test_one_figure_twice_on_a_page_has_ids_of_its_own(golden: Any) -> None:
    exhibit = EXHIBITS[0]
    one, two = (exhibit.svg(golden, name) for name in ("one", "two"))
    assert not ids(one) & ids(two) and one.replace("one-", "two-") == two


def test_no_text_is_taken_for_mathematics_or_misses_a_letter(recwarn: pytest.WarningsRecorder) -> None:
    said = "$\\frac$ <b> \u4e2d"
    svg = canvas.svg(lambda ax: canvas.note(ax, 0.5, 0.5, said))
    assert "$\\frac$ &lt;b&gt; \u4e2d" in svg and not list(recwarn)


def face(line: Any) -> bool:
    """Whether the marker is hollow."""
    return line.get_markerfacecolor() == "white"


def test_a_run_without_windows_says_so_or_shows_what_it_has() -> None:
    killed = RunInMemory(spread(0, 0.0))
    for exhibit in EXHIBITS:
        for made in (exhibit.svg, exhibit.table, exhibit.alt):
            if exhibit.name == "timeseries":
                assert made(killed) is not None
            else:
                with pytest.raises(NoData):
                    made(killed)
    with pytest.raises(NoData, match="no requests"):
        figures.timeline.timeseries_table(RunInMemory([]))


def test_latency_belongs_to_its_own_window_whatever_the_order_of_the_rates() -> None:
    run = faulty()
    rows = figures.latency.latency_table(run).to_pylist()
    assert [(row["window"], row["rate_qps_per_node"], row["outcome"]) for row in rows] == [
        (0, 6.0, "pass"),
        (1, 4.0, "fail"),
        (2, 5.0, "void"),
    ]
    many = [request(0, i / 5, 100.0 + i % 10) for i in range(3000)]
    more = [request(1, 600 + i / 5, 900.0 + i % 10) for i in range(3000)]
    lines = [window(0, 6.0, 0, 600), window(1, 4.0, 600, 1200)]
    first, second = figures.latency.latency_table(RunInMemory(many + more, lines, concluded())).to_pylist()
    assert 100 < first["ttft_p90_low_ms"] <= first["ttft_p90_high_ms"] < 120
    assert 900 < second["ttft_p90_low_ms"] <= second["ttft_p90_high_ms"] < 920
    assert "infinite" in figures.latency.latency_alt(run)


def test_a_void_run_gets_no_capacity_and_a_valid_one_its_band() -> None:
    exhibit = EXHIBITS[0]
    run = faulty()
    assert "capacity: 5.00 [4.00, 6.00]" in names(drawn(exhibit, run))
    assert "certified 4.20" in exhibit.alt(run) and "beyond" not in exhibit.alt(run)
    far = concluded(qps_per_node={"estimate": 5.0, "low": 4.0, "high": 9.0, "certified": 4.2})
    assert "ends beyond the highest load that arrived" in exhibit.alt(run.but(sweep=far))
    void = run.but(sweep=concluded(valid=False))
    assert not [name for name in names(drawn(exhibit, void)) if "capacity" in name or "certified" in name]
    assert "No capacity is claimed" in exhibit.alt(void)
    search = EXHIBITS[1]
    assert any("answer" in name for name in names(drawn(search, run)))
    assert not [name for name in names(drawn(search, void)) if "answer" in name]


def test_an_open_end_is_named_as_a_bound() -> None:
    run = faulty().but(sweep=concluded(open_above=True))
    assert "at least 4.00" in EXHIBITS[0].alt(run)
    shown = names(drawn(EXHIBITS[0], run))
    assert "capacity: at least 4.00" in shown and not [name for name in shown if "certified" in name]


def test_failures_keep_a_curve_below_one() -> None:
    at, part = cdf.steps(np.array([3.0, math.inf, 1.0, math.nan, 2.0]))
    assert at.tolist() == [1, 2, 3] and part.tolist() == [0.25, 0.5, 0.75]
    at, part = cdf.steps(np.arange(1000.0), most=50)
    assert len(at) == 50 and part[-1] == 1 and (np.diff(part) > 0).all()
    rows = figures.cdf.cdf_table(faulty()).to_pylist()
    assert [row["rate_qps_per_node"] for row in rows] == [4.0, 6.0]  # the void window is left out
    assert rows[0]["ttft_within_bound_pct"] == 75 and rows[0]["ttft_p90_ms"] == math.inf
    assert any("5 failed" in name for name in names(drawn(EXHIBITS[2], faulty())))
    void = [window(0, 6.0, 0, 10, valid=False)]
    with pytest.raises(NoData, match="void"):
        figures.cdf.cdf_table(RunInMemory(spread(0, 0.0), void, concluded()))


def test_what_never_left_is_later_than_any_send() -> None:
    rows = figures.client.client_lag_table(faulty()).to_pylist()
    assert [row["never_sent"] for row in rows] == [0, 0, 2]
    assert (
        rows[2]["lag_p99_ms"] == math.inf
        and rows[2]["lag_longest_sent_ms"] == 1
        and rows[0]["gate_p99_ms"] == 20
    )
    panel = drawn(EXHIBITS[3], faulty())[1]
    worst = next(line for line in panel.get_lines() if "worst" in str(line.get_label()))
    assert worst.get_ydata()[-1] == pytest.approx(0.1)  # 2 of 20
    assert "above the gate" in EXHIBITS[3].alt(faulty())


def test_each_bound_of_the_load_generator_stands_beside_its_own_series(golden: Any) -> None:
    _, lag, cpu, own = drawn(EXHIBITS[3], golden)
    assert not any("CPU" in name or "run share" in name for name in names([lag]))
    used, gate = cpu.get_lines()
    assert used.get_label() == "CPU, busiest actor" and set(gate.get_ydata()) == {client_checks.CPU_SHARE}
    assert [text.get_text() for text in cpu.texts] == ["gate: at most 0.6 over a window"]
    crowded, noted = own.get_lines()
    assert crowded.get_label() == "run share, most crowded actor"
    assert set(noted.get_ydata()) == {client_checks.RUN_SHARE}
    assert noted.get_label() == "noted below 0.6 over a window"
    clients = golden.clients()
    assert np.nanmin(crowded.get_ydata()) == pytest.approx(min(clients["run_share"].drop_null().to_pylist()))
    assert np.nanmax(used.get_ydata()) == pytest.approx(max(clients["cpu_share"].to_pylist()))


def test_a_replica_that_never_answered_is_in_the_balance() -> None:
    asked = faulty().config
    layout = replace(asked.layout, replicas_per_node=3, tensor_parallel=2)
    run = faulty().but(config=replace(asked, layout=layout))
    rows = figures.replicas.replica_balance_table(run).to_pylist()
    assert [(row["replica"], row["requests"]) for row in rows] == [("a", 30), ("b", 10), ("no answer 1", 0)]
    assert "least busy 0.00 times the mean of 13 requests" in REPLICAS.alt(run)
    drawn(REPLICAS, run)
    void = faulty().but(windows=[window(0, 6.0, 0, 10, valid=False)])
    with pytest.raises(NoData, match="every window is void"):
        figures.replicas.replica_balance_table(void)


def test_nearly_all_is_not_called_all() -> None:
    assert [share(part) for part in (0.0, 0.5, 0.9994, 0.99951, 1.0)] == [
        *("0 %", "50 %", "99.9 %", "over 99.9 %", "100 %")
    ]


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
    state = server_state.state(RunInMemory([], told=told).timeseries(), np.array([0.0, 1.0, 2.0, 3.0, 20.0]))
    assert state.running.tolist()[:4] == [3, 3, 3, 3] and np.isnan(state.running[4])  # stale
    assert state.kv_pct[0] == 50 and np.isnan(state.waiting).all()
    assert state.hit_pct[1:4] == pytest.approx([25, 50, 50]) and np.isnan(state.hit_pct[0])


def test_tokens_are_counted_where_they_came() -> None:
    rows = [
        request(0, 0.0, 0.0, 1000.0),  # 11 tokens from 0 to 10 s
        request(0, 6.0, 500.0, 0.0, output_tokens=1),  # at 6.5 s
        failed(0, 5.0),
    ]
    run = RunInMemory(rows, [window(0, 1.0, 2, 7)], concluded())
    came = per_gpu.Came(run.requests())
    assert came.outputs(2, 7) == pytest.approx(11 / 2 + 1) and came.outputs(0, 20) == pytest.approx(12)
    busy = RunInMemory([request(0, t, 0.0, 50.0) for t in range(10)], [window(0, 1.0, 0, 10)], concluded())
    (row,) = figures.pareto.pareto_table(busy).to_pylist()
    assert row["interactivity_median_tok_per_s_user"] == pytest.approx(20)
    assert row["gpus"] == 8 and row["output_tok_per_s_gpu"] == pytest.approx(11 * 10 / 10 / 8, rel=0.02)


def test_unknown_gpus_are_not_guessed() -> None:
    run = faulty()
    asked = replace(
        run.config, engine=ExternalEngine(), target=replace(run.config.target, urls=["http://a:1"])
    )
    with pytest.raises(NoData, match="GPUs"):
        figures.pareto.pareto_table(run.but(config=asked))


def test_replicas_by_their_requests() -> None:
    rows = figures.replicas.replica_balance_table(faulty()).to_pylist()
    assert [(row["replica"], row["share_pct"]) for row in rows] == [("a", 75), ("b", 25)]
    one = [window(0, 6.0, 0, 10, by_replica=[{"replica_id": "a", "requests": 3, "ttft_p90_ms": 1.0}])]
    with pytest.raises(NoData, match="one replica"):
        figures.replicas.replica_balance_table(RunInMemory(spread(0, 0.0), one, concluded()))


def test_the_path_of_the_search_is_that_of_its_events(golden: Any) -> None:
    rows = figures.search.search_table(golden).to_pylist()
    done = [event for event in golden.events() if event["event"] == "segment_done"]
    assert [row["posterior_qps_per_node"] for row in rows] == [e["capacity"]["qps_per_node"] for e in done]
    assert [row["rate_qps_per_node"] for row in rows] == golden.dwells()["rate_qps_per_node"].to_pylist()


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    x, y = canvas.thinned(np.arange(10_000.0), np.arange(10_000.0) * 2, most=100)
    assert len(x) == 100 and (x[0], x[-1]) == (0, 9999) and (y == 2 * x).all()
    (same,) = canvas.thinned(np.arange(5.0))
    assert len(same) == 5


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
                assert drawn(exhibit, run) and exhibit.table(run).num_rows and exhibit.alt(run)
            except NoData as error:
                assert str(error)
