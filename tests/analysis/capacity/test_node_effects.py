"""Streams per node (analysis.capacity.node_effects, loadgen.traffic): drawn, sent, counted, compared."""

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import NodeEffects, including, node_effects, posterior
from analysis.capacity.window_counts import WindowCounts, count_by_stream
from analysis.results.json_border import to_tree
from analysis.results.verdicts import NodeSpread
from analysis.rows import metrics, records
from analysis.stats.estimate import Estimate
from analysis.views.rates import node_facts
from cluster.deployment import deploy, serve_state
from conf import Experiment, load
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.load_feed import LoadPlan
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client, chosen
from loadgen.fleet.rows import plan_table
from loadgen.run import verdicts
from loadgen.search.window_plan import MeasuredWindow, Start, WindowPlan, counted_windows
from loadgen.traffic.schedule import NS, ArrivalSchedule, Planned
from loadgen.traffic.traffic import Profile, Traffic
from serve_apps.engine_model import EngineKind
from serve_apps.engine_model.cost.step_time import Roofline
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.verdict_trees import text_of
from tests.support.search.search_windows import limit_count, window
from tests.support.search.searches import swept
from tests.support.servers.mock_server import MockServer
from tests.support.servers.plans import client_plan
from tests.support.virtual.virtual_service import VirtualService
from tests.support.virtual.virtual_target import VirtualTarget

VARIED = load(["workload=chat_5600_140_varied"]).workload
FOUR = ["cluster=laptop_4n", "routing=per_node"]
BOUNDS = {"transition": (0, 15 * NS), "window": (15 * NS, 60 * NS), "bridge": (60 * NS, 61 * NS)}


def drawn(rate: float | Profile, streams: int, window_index: int = 3) -> ArrivalSchedule:
    traffic = Traffic(VARIED)
    return traffic.draw(rate, BOUNDS, window_index=window_index, first_seq=100, seed=1, streams=streams)


def of_stream(schedule: ArrivalSchedule, stream: int) -> ArrivalSchedule:
    return schedule.where(schedule.stream == stream)


def driver(words: list[str], *factors: float) -> tuple[Driver, Experiment]:
    """A driver over one virtual node for each factor, which knows about where the capacity is."""
    experiment = load([*FOUR, f"cluster.nodes={len(factors)}", "search.start=prediction", *words])
    spec: Any = experiment.engine
    kind = EngineKind.of(spec, experiment.model, experiment.hardware, experiment.layout)
    virtual = VirtualService(kind, len(factors))
    arrays = virtual.service.arrays
    names = Roofline._fields
    timed = np.array([name.endswith("_s") for name in names])
    arrays.set(costs=np.array([np.where(timed, factor, 1.0) * arrays.costs[0] for factor in factors]))
    arrays.engines["kind"] = range(len(factors))
    it, start = experiment, Start(5.1, 3.35)
    plan = LoadPlan(it.search, it.slo, it.workload, it.cluster.nodes, it.seed, start, streams=it.streams)
    return Driver(VirtualTarget(virtual), plan, lambda *_, **__: None), experiment


def test_every_node_has_an_independent_stream_of_the_full_rate_per_node() -> None:
    schedule = drawn(400.0, 4)
    assert (np.diff(schedule.due_ns) >= 0).all()
    assert schedule.seq.tolist() == list(range(100, 100 + len(schedule)))
    streams = [of_stream(schedule, stream) for stream in range(4)]
    assert sum(map(len, streams)) == len(schedule)
    per_second = np.array([np.bincount(s.due_ns // NS, minlength=61)[:61] for s in streams])
    assert per_second.mean(axis=1) == pytest.approx([100.0] * 4, abs=5)
    # Poisson: of each, variance = mean; of no two, covariance.
    assert per_second.var(axis=1) / per_second.mean(axis=1) == pytest.approx([1.0] * 4, abs=0.6)
    assert abs(np.corrcoef(per_second) - np.eye(4)).max() < 0.45
    assert len({tuple(s.input_tokens[:20]) for s in streams}) == 4


def test_a_stream_is_the_same_at_every_rate_and_whatever_runs_before() -> None:
    slow, fast = (of_stream(drawn(rate, 4), 2) for rate in (20.0, 40.0))
    shared = min(len(slow), len(fast))
    assert fast.due_ns[:shared] * 2 == pytest.approx(slow.due_ns[:shared], abs=4)
    assert (fast.input_tokens[:shared] == slow.input_tokens[:shared]).all()
    assert of_stream(drawn(20.0, 4, window_index=4), 2).due_ns[0] != slow.due_ns[0]


def test_a_profile_is_cut_into_equal_parts() -> None:
    schedule = drawn(Profile([0, 45], [0, 400]), 4)
    late = of_stream(schedule, 3).due_ns >= 37.5 * NS
    # Of the 9000 requests of the window and 400 of the bridge a quarter is the stream's.
    assert len(late) == pytest.approx(9400 / 4, rel=0.1)
    assert late.mean() == pytest.approx(1 - 2250 / 9400, abs=0.03)


def test_a_pooled_schedule_names_no_stream_and_the_warm_up_takes_nodes_in_turn() -> None:
    assert drawn(20.0, 0).stream is None
    assert plan_table(drawn(20.0, 0))["stream"].null_count == len(drawn(20.0, 0))
    warm = Traffic(VARIED).evenly(6, 0, NS, first_seq=0, seed=1, streams=4)
    assert warm.stream is not None and warm.stream.tolist() == [0, 1, 2, 3, 0, 1]


def test_the_client_sends_a_stream_to_its_own_url() -> None:
    async def main() -> list[int]:
        async with MockServer() as first, MockServer() as second:
            ended = asyncio.Event()
            left = iter(range(5, -1, -1))
            client = Client(
                client_plan([first.url, second.url]), lambda _: ended.set() if next(left) == 0 else None
            )
            body = json.dumps({"prompt": [1], "max_tokens": 1}).encode()
            for seq, stream in enumerate([1, 1, 0, 1, 1, 1]):
                client.start(Exchange(Planned(seq, 0, "window", 0, 1, 1, stream=stream)), body)
            await asyncio.wait_for(ended.wait(), PATIENCE_S)
            client.cut_all("interrupted")
            return [len(first.requests), len(second.requests)]

    assert asyncio.run(main()) == [1, 5]


def test_pooled_endpoints_are_chosen_at_random_so_that_each_sees_poisson_arrivals() -> None:
    choice = np.array([chosen(seq, 3) for seq in range(30_000)])
    assert np.bincount(choice) / len(choice) == pytest.approx([1 / 3] * 3, abs=0.01)
    # In turn the gaps between two requests of a URL would all be 3; at random they are geometric.
    gaps = np.diff(np.flatnonzero(choice == 0))
    assert gaps.var() == pytest.approx(3 * (3 - 1), rel=0.1)
    pairs = np.bincount(choice[:-1] * 3 + choice[1:], minlength=9) / (len(choice) - 1)
    assert pairs == pytest.approx([1 / 9] * 9, abs=0.01)
    assert chosen(7, 1) == 0


def test_a_virtual_replica_gets_its_own_stream_whatever_the_others_hold() -> None:
    drive, _ = driver(["search=quick"], 1.0, 1.0, 1.0)
    programs.offer_rate(drive, 2.0, 15, 5)
    rows = drive.windows.requests(0).select(["stream", "replica_id"]).to_pylist()
    assert {(row["stream"], row["replica_id"]) for row in rows} == {(0, "0"), (1, "1"), (2, "2")}


def test_each_stream_is_counted_as_a_window_of_one_node() -> None:
    drive, experiment = driver(["search=quick"], 1.0, 1.5)
    programs.offer_rate(drive, 3.0, 30, 10)
    (outcome,) = drive.windows.outcomes
    whole, parts = outcome.counts, outcome.parts
    assert [(part.stream, part.nodes, part.rate_qps) for part in parts] == [(0, 1, 3.0), (1, 1, 3.0)]
    for figure in ("requests", "completed", "failed", "pending"):
        assert sum(getattr(part, figure) for part in parts) == getattr(whole, figure)
    assert sum(part.over("tpot").over for part in parts) == whole.over("tpot").over
    assert sum(part.over("tpot").determined for part in parts) == whole.over("tpot").determined
    # The work of the service per node is the mean of its nodes' work.
    assert math.exp(whole.log_work) == pytest.approx(np.mean([math.exp(part.log_work) for part in parts]))
    assert parts[1].over("tpot").over > parts[0].over("tpot").over  # the slow one
    again = count_by_stream(
        drive.windows.requests(0), whole, 2, experiment.slo, experiment.workload, drive.feed.free_ns
    )
    assert again == parts
    due_s = metrics.numbers(drive.windows.requests(2), "due_ns") / NS  # what runs out after it
    assert len(due_s) / np.ptp(due_s) == pytest.approx(2 * 3.0, rel=0.3)


def counts(
    index: int, stream: int | None, share: float, rate: float = 5.0, requests: int = 198
) -> WindowCounts:
    """A window of 45 s with a share of requests over the TPOT limit, evenly over its blocks."""
    limits = {"ttft": limit_count(0, requests), "tpot": limit_count(round(share * requests), requests)}
    return window(rate, limits, requests, index, arrivals_var=0.0, stream=stream)


def share(rate: float, capacity: float, slope: float = 20.0) -> float:
    """The share of requests over a limit, on the curve that the posterior fits."""
    return 1 / (1 + 9 * (capacity / rate) ** slope)


def test_the_posterior_rests_on_the_streams_and_not_twice_on_the_whole() -> None:
    plan = WindowPlan(0, "window", 5.0, 15, 45, False, "")
    parts = counts(0, 0, 0.1), counts(0, 1, 0.2)
    later = counts(1, 0, 0.1), counts(1, 1, 0.2)
    outcomes = [
        MeasuredWindow(plan, counts(0, None, 0.15), parts=parts),
        MeasuredWindow(plan, counts(9, None, 0.9), void=True, parts=(counts(9, 0, 0.9),)),
        MeasuredWindow(plan, counts(1, None, 0.15), parts=later),
    ]
    assert counted_windows(outcomes) == [*parts, *later]
    prior = Prior(math.log(5))
    assert posterior([*parts, *later], prior) == posterior([parts[0], later[0], parts[1], later[1]], prior)
    pooled = [MeasuredWindow(plan, counts(i, None, 0.1)) for i in range(2)]
    assert counted_windows(pooled) == [outcome.counts for outcome in pooled]


def test_equal_nodes_show_no_effect_and_leave_the_interval_alone() -> None:
    windows = [counts(i, s, 0.1) for s in range(4) for i in range(8)]
    prior = Prior(math.log(5))
    effects, capacity = node_effects(windows, prior), posterior(windows, prior)
    assert effects is not None and effects.differing == ()
    assert [effect.value for effect in effects.effects] == pytest.approx([0.0] * 4, abs=0.002)
    assert including(capacity, effects) == replace(capacity, windows=tuple(range(8)))
    assert "no node is shown to differ" in list(node_facts(NodeSpread.from_effects(effects)))[-1][1]
    assert node_effects([counts(i, None, 0.1) for i in range(8)], prior) is None
    assert including(capacity, None) is capacity


def test_one_slow_node_is_named_and_widens_the_interval() -> None:
    capacities, rates = (5.0, 5.0, 4.6, 5.0), (4.6, 4.8, 5.0, 5.2)
    windows = [
        counts(i, s, share(rates[i % 4], capacities[s]), rates[i % 4]) for s in range(4) for i in range(40)
    ]
    prior = Prior(math.log(5))
    effects, capacity = node_effects(windows, prior), posterior(windows, prior)
    assert effects is not None and 2 in effects.differing
    slow = effects.effects[2]
    assert slow.value < -0.04 and slow.low < slow.value < slow.high < 0
    wide = including(capacity, effects)
    assert wide.low < capacity.low < wide.qps_per_node == capacity.qps_per_node < capacity.high < wide.high
    assert wide.low < wide.certified < capacity.certified
    sd = effects.between.value / 2
    half = math.log(capacity.qps_per_node / capacity.low)
    assert math.log(wide.qps_per_node / wide.low) == pytest.approx(math.hypot(half, 1.96 * sd), rel=1e-3)
    said = list(node_facts(NodeSpread.from_effects(effects)))
    assert any(name == "node 2" and "% below the mean [" in value for name, value in said)


def test_an_effect_is_told_with_its_side_and_its_interval_in_order() -> None:
    effects = NodeEffects(
        (Estimate(0.01, -0.01, 0.03), Estimate(-0.041, -0.062, -0.02)), Estimate(0.03, 0.01, 0.06)
    )
    assert effects.differing == (1,)
    assert list(node_facts(NodeSpread.from_effects(effects)))[1:] == [
        ("node 1", "4.10 % below the mean [2.00, 6.20]"),
        ("nodes", "sd between nodes 3.00 [1.00, 6.00] %: the capacity's interval includes it"),
    ]


@pytest.mark.slow
def test_a_sweep_says_what_it_measured_streams_per_node_or_a_pool() -> None:
    drive, experiment = driver(["search=quick", "search.min_windows=3", "search.budget_s=210"], 1.0, 1.0)
    result = swept(drive)
    tree = to_tree(verdicts.sweep_verdict(experiment, drive, result.stop))
    assert result.capacity is not None and result.capacity.low < 3.35 < result.capacity.high  # the truth
    assert tree["capacity"]["windows_used"] == list(range(len(result.outcomes)))
    assert len(tree["nodes"]["effects_pct"]) == 2
    text = text_of(tree)
    assert "independent streams per node: each of 2 nodes" in text and "pooled" not in text
    routed = {**tree, "experiment": {**tree["experiment"], "routing": "leastconn"}, "nodes": None}
    pooled = text_of(routed)
    assert "pooled service behind one balancer" in pooled


def test_only_streams_per_node_are_streams() -> None:
    assert load(FOUR).streams == 4
    assert load(["cluster=laptop_4n"]).streams == 0
    two = ["engine=external", "target.urls=[http://a:1,http://b:1]", "cluster.nodes=2"]
    assert load([*two, "routing=per_node"]).streams == 2


def test_a_planned_stream_is_known_of_what_was_lost() -> None:
    lost = records.lost(plan_table(drawn(1.0, 2)))
    assert set(lost["stream"].to_pylist()) == {0, 1}


def test_the_replicas_own_addresses_are_the_nodes() -> None:
    def state(**nodes_: str) -> Any:
        engines = tuple(
            serve_state.ServeReplica(name, "engine", node, "10.0.0.1", 1, name, 0.0)
            for name, node in nodes_.items()
        )
        return serve_state.ServeState("RUNNING", "", {}, engines, (), "HEALTHY", (), "", "")

    urls = {"b": "http://10.0.0.2:3000", "a": "http://10.0.0.1:3001"}
    assert deploy._node_urls(urls, state(a="one", b="two")) == (urls["a"], urls["b"])
    with pytest.raises(deploy.DeployError, match="2 replicas share 1 node"):
        deploy._node_urls(urls, state(a="one", b="one"))
    with pytest.raises(deploy.DeployError, match="0 of 2 replicas have an address"):
        deploy._node_urls({}, state(a="one", b="two"))
