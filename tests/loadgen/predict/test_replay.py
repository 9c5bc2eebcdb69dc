"""loadgen/predict/replay.py: so many requests over a service of known answer and on the engine model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from analysis.results import predictions, summary
from analysis.results.json_border import from_tree, to_tree
from analysis.stats.estimate import Estimate, span
from conf import Experiment, load
from conf.matrix import matrix
from conf.specs.experiment import Arrivals
from loadgen.__main__ import main
from loadgen.cli import engine_model
from loadgen.predict import grid, replay
from loadgen.predict.operating_point import Simulated
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import bench_arrivals_s
from tests.support.runs.verdict_trees import cells, grid_screen, text_of
from tests.support.virtual.known_answer import only_layer

QUIET = "workload.arrivals.kind=constant"


def simple(experiment: Experiment, arrivals: ArrivalSchedule, _nodes: int, _seed: int) -> Simulated:
    """TTFT is 10 ms x layer_us / 100 x the request's number from 1, TPOT 1 ms x layer_us / 100."""
    slow = experiment.model.step_time.layer_us.value / 100
    sent_s = arrivals.due_ns / NS
    first_s = sent_s + 0.010 * slow * np.arange(1, len(arrivals) + 1)
    last_s = first_s + 0.001 * slow * (arrivals.output_tokens - 1)
    gap_s = np.where(arrivals.output_tokens > 1, 0.002 * slow, np.nan)
    none = np.zeros(len(arrivals), np.int64)
    return Simulated(sent_s, first_s, last_s, none, {}, replica=none, own_itl_s=gap_s)


def crowded(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """A TTFT of how long ago the third last request came: what arrivals make of it, and nothing else."""
    seen = simple(experiment, arrivals, nodes, seed)
    near_s = np.maximum(0.01, 0.5 - (seen.sent_s - np.concatenate([[0.0] * 3, seen.sent_s[:-3]])))
    return seen._replace(first_s=seen.sent_s + near_s, last_s=seen.sent_s + near_s + 1.0)


def arriving(kind: Literal["poisson", "vllm_bench"], *words: str, **fields: Any) -> Experiment:
    """`only_layer` with such arrivals."""
    experiment = only_layer(*words)
    return replace(experiment, workload=replace(experiment.workload, arrivals=Arrivals(kind)), **fields)


def test_the_requests_of_a_rate_are_the_first_of_its_process() -> None:
    one, more = (replay.planned(load(["rate_qps=8", f"requests={count}"])) for count in (40, 90))
    assert (len(one), len(more)) == (40, 90)
    np.testing.assert_array_equal(one.due_ns, more.due_ns[:40])
    assert more.due_ns[-1] / NS == pytest.approx(90 / 8, rel=0.4)
    four = replay.planned(load(["rate_qps=8", "requests=40", "cluster=laptop_4n"]))
    np.testing.assert_allclose(four.due_ns, one.due_ns / 4, atol=1)
    assert (replay.planned(load(["rate_qps=8", "requests=40"]), 1).due_ns != one.due_ns).all()


def test_arrivals_of_the_tool_stay_and_lengths_are_drawn_anew() -> None:
    mixed = "workload.output_tokens={kind: mixture, values: [2, 200], weights: [0.75, 0.25]}"
    experiment = load(["rate_qps=8", "requests=200", "workload.arrivals.kind=vllm_bench", "seed=0", mixed])
    one, other = (replay.planned(experiment, number) for number in (0, 1))
    np.testing.assert_allclose(one.due_ns / NS, bench_arrivals_s(200, 8.0, 0), atol=1e-9)
    np.testing.assert_array_equal(one.due_ns, other.due_ns)
    assert set(one.output_tokens) == {2, 200} and (one.output_tokens != other.output_tokens).any()
    assert (one.output_tokens == 2).mean() == pytest.approx(0.75, abs=0.1)


def test_figures_and_intervals_are_those_of_the_requests_and_the_constants() -> None:
    experiment = only_layer("rate_qps=8", "requests=100", "slo.ttft_p90_ms=950", "slo.tpot_p90_ms=1.3")
    tree = to_tree(replay.predict(experiment, simple))
    result = tree["replay"]["figures"]
    assert result["ttft_ms.p90"]["value"] == pytest.approx(np.quantile(np.arange(10, 1001, 10), 0.9))
    assert result["tpot_ms.p50"]["value"] == pytest.approx(1.0)
    assert result["gap_ms.p99"]["value"] == pytest.approx(2.0)
    # layer_us is 100 within [80, 160], and so are the latencies; 48 draws give the ends roughly.
    for name in ("ttft_ms.p90", "tpot_ms.p90", "gap_ms.p50"):
        one = result[name]
        assert one["low"] / one["value"] == pytest.approx(0.8, rel=0.05)
        assert one["high"] / one["value"] == pytest.approx(1.6, rel=0.08)
    last_s = float(replay.planned(experiment).due_ns.max() / NS) + 1.0 + 0.139
    assert result["makespan_s"]["value"] == pytest.approx(last_s)
    assert result["total_tokens_per_s"]["value"] == pytest.approx(100 * 5740 / last_s)
    rate = result["requests_per_s"]
    assert rate["low"] < rate["value"] < rate["high"]
    passed = {limit: one["passed"] for limit, one in tree["probe"]["limits"].items()}
    assert (tree["exit_code"], passed) == (0, {"ttft": True, "tpot": True})
    # Both bounds are kept up to a layer_us of 105: one half of the draws, and the tenth above the median.
    assert tree["replay"]["kept_probability"] == pytest.approx(0.58, abs=0.05)


def test_every_bound_that_a_replay_sees_is_judged() -> None:
    bounds = ["slo.itl_p99_ms=2.5", "slo.e2e_p50_ms=1000", "slo.joint=0.5", "slo.ttft_p90_ms=605"]
    verdict = replay.predict(only_layer("rate_qps=8", "requests=100", *bounds), simple, draws=4)
    result = verdict.probe.limits
    assert list(result) == ["ttft", "tpot", "itl_p99", "e2e_p50", "joint_p50"]
    gaps = result["itl_p99"]
    assert gaps.ms and gaps.ms.value == pytest.approx(2.0) and gaps.passed
    # TTFT is 10 ms x the request's number, the rest of an answer 139 ms: 60 requests keep every bound.
    assert result["e2e_p50"].ms and result["e2e_p50"].ms.value == pytest.approx(10 * 50.5 + 139, rel=0.02)
    assert result["joint_p50"].share == pytest.approx(0.6) and result["joint_p50"].passed
    assert verdict.probe.missed == ["ttft"]


def test_a_bound_missed_ends_with_its_code_and_says_so() -> None:
    asked = arriving("poisson", "slo.ttft_p90_ms=100", concurrency=50, requests=50)
    tree = to_tree(replay.predict(asked, simple, draws=4))
    assert (tree["exit_code"], tree["passed"]) == (summary.EXIT_SLO_MISSED, False)
    text = text_of(tree)
    assert text.startswith(
        "PREDICTED  50 requests, 50 in flight: p90 TTFT over the bound; the bounds are kept in 0 %"
    )
    assert "arrivals and lengths are given, so that no other seed is part of the intervals" in text
    assert "over the bound 100 ms" in text and "0.6 to 1.5" not in text


@pytest.mark.slow
def test_chance_is_part_of_the_interval_where_it_drew_the_arrivals() -> None:
    words = ("rate_qps=8", "requests=60")
    tree = to_tree(replay.predict(arriving("poisson", *words), crowded, draws=0))
    one = tree["replay"]["figures"]["ttft_ms.p50"]
    assert one["low"] < one["value"] < one["high"]
    assert tree["replay"]["other_seeds"]["ttft_ms.p50"] == one
    others = [
        to_tree(replay.predict(arriving("poisson", *words, f"seed={seed}"), crowded, draws=0))
        for seed in range(2, 32)
    ]
    values = [other["replay"]["figures"]["ttft_ms.p50"]["value"] for other in others]
    assert sum(one["low"] <= value <= one["high"] for value in values) >= 24
    given = to_tree(replay.predict(arriving("vllm_bench", *words), crowded, draws=0))
    figure = given["replay"]["figures"]["ttft_ms.p50"]
    assert figure["low"] == figure["value"] == figure["high"] and not given["replay"]["other_seeds"]
    assert "chance: with another seed" in text_of(tree) and "no constant is uncertain" in text_of(tree)


def test_what_does_not_apply_is_unknown() -> None:
    asked = only_layer("rate_qps=8", "requests=9", "workload.output_tokens.mean=1")
    one = to_tree(replay.predict(asked, simple, draws=4))
    assert one["replay"]["figures"]["tpot_ms.p90"] is None
    assert one["probe"]["limits"]["tpot"]["passed"] is None and "does not apply" in text_of(one)


def test_a_grid_is_a_table_and_a_row_per_cell() -> None:
    asked = matrix(["matrix.rate_qps=[4,8]", "requests=20"])
    result = grid.cells_of(asked, lambda words: only_layer(*words))
    tree = to_tree(grid.predicted(result, lambda one: replay.predict(one, simple, draws=4), map))
    heads, slow, fast, *grounds = grid_screen(tree).splitlines()
    assert [line.split(":")[0] for line in grounds] == ["measured", "fitted", "assumed"]
    assert "TTFT p90 ms" in heads and " 181 [" in slow
    assert slow.split()[:2] == ["4", "105"] and fast.split()[0] == "8"
    # The same constants err in both: at twice the rate the throughput is known better than in either.
    second = tree["cells"][1]
    one, ratio = second["answer"]["replay"]["figures"]["output_tokens_per_s"], second["ratio"]
    assert from_tree(Estimate, tree["cells"][0]["ratio"], "the cell") == Estimate(1.0, 1.0, 1.0)
    assert 1 < ratio["high"] / ratio["low"] < one["high"] / one["low"]
    assert fast.endswith(span(Estimate(**ratio)))
    rows = predictions.grid_rows(cells(tree["cells"]), True)
    assert rows.column("ratio_to_first").to_pylist() == [1.0, ratio["value"]]
    assert rows.column("experiment.rate_qps").to_pylist() == ["4", "8"]
    assert rows.column("ttft_ms_p90").to_pylist() == pytest.approx([181.0, 181.0])
    refused = cells([{"at": {"rate_qps": 1}, "answer": {"exit_code": 2, "reason": "no"}}])
    assert rows.schema == predictions.grid_rows(refused, True).schema


@pytest.mark.slow
def test_on_the_engine_model_a_burst_is_a_closed_loop_that_nobody_joins() -> None:
    words = ["requests=12", "workload=smoke", "layout=dp2_tp4_ep4"]
    burst = load([*words, "concurrency=12"])
    seen = replay.played(burst, engine_model.simulate)
    assert seen.sent_s.tolist() == [0.0] * 12 and set(seen.replica) == {0, 1}  # type: ignore[arg-type]
    four = load([*words, "concurrency=4"])
    seen = replay.played(four, engine_model.simulate)
    assert (seen.sent_s[:4] == 0).all() and (seen.sent_s[4:] > 0).all()
    assert set(seen.sent_s[4:]) <= set(seen.last_s)


@pytest.mark.slow
def test_the_command_answers_and_writes_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, rows = tmp_path / "answer.parquet", tmp_path / "requests.csv"
    words = ["predict", "rate_qps=8", "requests=20", "workload=smoke", "seed=0"]
    words += ["workload.arrivals.kind=vllm_bench", "matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4]"]
    words += ["routing=roundrobin", "--json", "--out", str(out), "--requests", str(rows)]
    assert main(words) == 0
    output = json.loads(capsys.readouterr().out)
    figures = [cell["answer"]["replay"]["figures"] for cell in output["cells"]]
    assert all(each["ttft_ms.p90"]["low"] < each["ttft_ms.p90"]["high"] for each in figures)
    table = pyarrow.csv.read_csv(rows)
    assert table.num_rows == 40
    assert table.column("replica").to_pylist() == [0] * 20 + [0, 1] * 10
    np.testing.assert_allclose(table.column("due_s").to_numpy()[:20], bench_arrivals_s(20, 8.0, 0), atol=1e-8)
    ttft_ms = 1e3 * table.column("ttft_s").to_numpy()[:20]
    assert np.quantile(ttft_ms, 0.9) == pytest.approx(figures[0]["ttft_ms.p90"]["value"])
    assert pq.read_table(out).column("ttft_ms_p90").to_pylist()[0] == pytest.approx(np.quantile(ttft_ms, 0.9))


def test_a_shared_beginning_is_cached_after_the_first_who_brings_it() -> None:
    cold, warm = (
        load(["rate_qps=.1", "requests=4", f"workload.prefix_hit={hit}", QUIET]) for hit in (0, 0.9)
    )
    seen = [replay.played(one, engine_model.simulate) for one in (cold, warm)]
    cold_s, warm_s = (one.first_s - one.sent_s for one in seen)
    assert warm_s[0] == pytest.approx(cold_s[0]) and (warm_s[1:] < cold_s[1:] / 2).all()
