"""The answer of `predict` for one experiment: the tree that it prints, and its exit code.

Knows what a planner asks (capacity or one rate, interval, limit, throughput, sensitivity); the engine model
is handed in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from analysis.results import constants_text, summary
from analysis.results.summary import Tree
from conf.specs.bounds import LIMITS, Limit, column
from conf.specs.experiment import Experiment, Search, SimulatedEngine
from loadgen.predict.capacity import (
    MANY_NODES,
    QUICK_S,
    SLOW_S,
    SLOWLY,
    PredictedCapacity,
    Solution,
    predicted_capacity,
    quiet,
    simulated_nodes,
)
from loadgen.predict.drawn_p90 import P90Draws, SimulatedP90s, intervals, under_draws
from loadgen.predict.operating_point import Effort, OperatingPoint, RateSimulator, Simulate
from loadgen.predict.sensitivity import sensitivities
from loadgen.predict.uncertainty import DRAWS, ParallelMap, Uncertainty, uncertainty
from loadgen.traffic.prefix_sharing import cache_warmup_s, reusable_share, sessions_alive

INTERVAL = "95 %: sampled uncertainty of the constants, and Monte Carlo noise; certified is the 5 % quantile"
SHARES = {"low": 0.025, "high": 0.975, "certified": 0.05}
SLOW_DRAWS = 16
"""Draws of the constants for an engine that is simulated block by block: fifteen seconds of two cores."""
UNGUESSED_QPS = 5.0
"""Rate at which the search begins without a guess."""


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Limits of one node: KV capacity, peak compute, and the work that a token costs.

    `kv_tokens` is the KV capacity of all `replicas` of a node; `peak_flop_per_s` is that of all their GPUs in
    the weights' type, None if unknown. The flop counts are those that the model needs, not those executed.
    `shares` gives the busy time by term from the sums of a run.
    """

    replicas: int
    kv_tokens: float
    peak_flop_per_s: float | None
    flop_per_token: float
    flop_per_pair: float
    shares: Callable[[Mapping[str, float]], dict[str, float]]


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The engine model as handed in; `guess_qps` is QPS per node by the roofline alone.

    `say` gets a line about what makes an answer slow.
    """

    simulate: Simulate
    machine: Callable[[Experiment], NodePeaks]
    guess_qps: Callable[[Experiment], float | None]
    say: Callable[[str], None] = quiet


def predict(
    experiment: Experiment,
    model: EngineModel,
    parallel_map: ParallelMap = map,
    draws: int = DRAWS,
    sensitivity: bool = False,
) -> Tree:
    """The capacity with its interval, as a tree of the form of sweep.json with `clock` = `virtual`.

    With `draws` = 0 the interval is Monte Carlo noise alone, without the constants' uncertainty.
    """
    guess = experiment.search.expected_qps or model.guess_qps(experiment) or UNGUESSED_QPS
    machine = model.machine(experiment)
    found = predicted_capacity(experiment, model.simulate, guess, model.say, machine.kv_tokens)
    tree = base(experiment)
    point, side = found.answer.point, found.answer.root.side
    tree["forecast"] = {
        **_figures(point, machine),
        **_sessions(experiment, point, machine),
        **_basis(found),
    }
    draws = min(draws, SLOW_DRAWS) if point.slow else draws
    if side:
        tree["forecast"] |= _under_draws(found.simulator, point.rate_qps, draws, parallel_map).tree
    if side < 0:
        low = (
            f"even at {point.rate_qps:g} QPS per node (search.lowest_qps) p90 {point.binding.upper()} is over"
        )
        return _end(tree, summary.EXIT_SLO_MISSED, f"{low} its bound")
    if side > 0:
        tree["capacity"] = _open_capacity(experiment, point)
        why = f"the bounds are kept even at {point.rate_qps:g} QPS per node (search.highest_qps); raise it"
        if not point.steady:
            why += (
                "; the queue grew all along there, so that bounds so wide are missed later than was watched"
            )
        return _end(tree, summary.EXIT_OPEN, why)
    unsure = uncertainty(found, draws, parallel_map)
    tree["capacity"] = _capacity(experiment, found.answer, unsure)
    if draws:
        tree["forecast"] |= {
            "draws": len(unsure.ln_ratios),
            "open_draws_below": unsure.open_below,
            "open_draws_above": unsure.open_above,
            "constants_sampled": list(unsure.sampled),
            "ln_ratios": list(unsure.ln_ratios),
        }
    if sensitivity:
        tree["sensitivity"] = [
            {**asdict(row), "ln_sd": row.ln_sd} for row in sensitivities(found, parallel_map)
        ]
    why = _beyond(experiment.search, tree["capacity"], unsure)
    return _end(tree, summary.EXIT_OPEN if why else summary.EXIT_OK, why)


def _under_draws(
    simulator: RateSimulator, rate_qps: float, draws: int, parallel_map: ParallelMap
) -> P90Draws:
    return under_draws(simulator.experiment, partial(_seen, simulator, rate_qps), draws, parallel_map)


def _seen(simulator: RateSimulator, rate_qps: float, experiment: Experiment) -> SimulatedP90s:
    point = simulator.varied(experiment).at(rate_qps)
    p90_ms = {limit: point.p90_ms(limit) for limit in LIMITS}
    return SimulatedP90s(p90_ms, point.excess(point.binding) <= 0, point.steady)


def _beyond(search: Search, capacity: Tree, unsure: Uncertainty) -> str:
    """The reason why an end of the interval is unknown; empty if both are known."""
    out, of = [], f"of {len(unsure.ln_ratios)} draws of the constants"
    if capacity["open_below"]:
        lowest = f"{search.lowest_qps:g} QPS per node (search.lowest_qps); lower it"
        out.append(f"a bound is missed in {unsure.open_below} {of} even at {lowest}")
    if capacity["open_above"]:
        highest = f"{search.highest_qps:g} QPS per node (search.highest_qps); raise it"
        out.append(f"the bounds are kept in {unsure.open_above} {of} even at {highest}")
    return "; ".join(out)


def at_rate(
    experiment: Experiment, model: EngineModel, parallel_map: ParallelMap = map, draws: int = DRAWS
) -> Tree:
    """The answer at one rate, `rate_qps` per node: each p90 against its bound.

    The intervals hold the constants' uncertainty and Monte Carlo noise. The tree also says in how many draws
    of the constants both bounds are kept.
    """
    assert experiment.rate_qps
    machine, whole = model.machine(experiment), experiment.workload.has_sessions
    nodes, kv_tokens = simulated_nodes(experiment), machine.kv_tokens
    rough = RateSimulator(
        experiment, model.simulate, Effort.of(QUICK_S, min(nodes, MANY_NODES), whole), kv_tokens
    )
    slow = rough.at(experiment.rate_qps).slow
    if slow:
        model.say(SLOWLY)
    budget_s = min(experiment.search.budget_s, SLOW_S if slow else math.inf)
    simulator = RateSimulator(experiment, model.simulate, Effort.of(budget_s, nodes, whole), kv_tokens)
    point = simulator.at(experiment.rate_qps)
    tree, draws = base(experiment), min(draws, SLOW_DRAWS) if slow else draws
    known = _under_draws(rough, experiment.rate_qps, draws, parallel_map)
    tree["forecast"] = _figures(point, machine) | _sessions(experiment, point, machine) | known.tree
    missed = [limit.upper() for limit in LIMITS if point.excess(limit) > 0]
    tree["probe"] = {
        "loop": "open",
        "rate_qps_per_node": experiment.rate_qps,
        "window_s": simulator.effort.window_s,
        **{limit: _p90(point, limit, known) for limit in LIMITS},
    }
    if missed:
        return _end(tree, summary.EXIT_SLO_MISSED, f"p90 {' and '.join(missed)} over the bound")
    return _end(tree, summary.EXIT_OK, "")


def _p90(point: OperatingPoint, limit: Limit, known: P90Draws) -> Tree:
    p90 = point.p90_ms(limit)
    return {
        "p90_ms": p90,
        **intervals(known, limit, p90, point.interval_ms(limit)),
        "bound_ms": point.bound_ms(limit),
        "passed": None if p90 is None else p90 <= point.bound_ms(limit),
    }


def base(experiment: Experiment) -> Tree:
    """The beginning of every answer: the experiment, and the source of the constants."""
    return {
        "schema_version": summary.SCHEMA_VERSION,
        "asked": summary.describe(experiment),
        "clock": "virtual",
        "dwells": [],
        "calibration": experiment.engine.constants if isinstance(experiment.engine, SimulatedEngine) else "",
        "constants": constants_text.tree(experiment),
    }


def _figures(point: OperatingPoint, machine: NodePeaks) -> Tree:
    """Figures of a node at the point's rate; Little's law gives the requests in flight, if `steady`."""
    rate, new = point.served_qps, point.input_tokens - point.cached_tokens
    pairs = new * (point.cached_tokens + new / 2)
    decoded = point.output_tokens * (point.input_tokens + point.output_tokens / 2)
    flop = machine.flop_per_token * (new + point.output_tokens) + machine.flop_per_pair * (pairs + decoded)
    return {
        "rate_qps_per_node": point.rate_qps,
        "steady": point.steady,
        **{column(limit): point.p90_ms(limit) for limit in LIMITS},
        "input_tokens_per_s_per_node": rate * point.input_tokens,
        "image_tokens_per_s_per_node": rate * point.image_tokens,
        "output_tokens_per_s_per_node": rate * point.output_tokens,
        "cached_share_of_input": point.cached_tokens / point.input_tokens,
        "in_flight_per_node": rate * point.e2e_s if point.steady else None,
        "kv_used": _known(point.work["kv_token_seconds"] / point.load_s / machine.kv_tokens),
        "busy": _known(point.work["busy_s"] / point.load_s / machine.replicas),
        "mfu": rate * flop / machine.peak_flop_per_s if machine.peak_flop_per_s else None,
        "step_terms": machine.shares(point.work),
        "requests": len(point.ttft_ms),
        "simulated_node_s": point.load_s,
    }


def _sessions(experiment: Experiment, point: OperatingPoint, machine: NodePeaks) -> Tree:
    """Figures of sessions under the routing; empty without sessions.

    `reusable_share_of_input` is the hit share of an unbounded cache that every turn meets.
    """
    routed, workload = point.routing_outcome, experiment.workload
    if routed is None:
        return {}
    nodes = experiment.cluster.nodes
    alive = sessions_alive(workload, point.rate_qps, nodes) or 0.0
    return {
        "replicas_per_session": routed.replicas_per_session,
        "max_over_mean_share": routed.max_over_mean_share,
        "blocked_share": routed.blocked_share,
        "reusable_share_of_input": reusable_share(workload),
        "sessions_per_node": alive,
        "sessions_over_kv": alive * workload.input_tokens.mean / machine.kv_tokens,
        "simulated_nodes": routed.replicas // machine.replicas,
        "fill_s": cache_warmup_s(workload, point.rate_qps, nodes, machine.kv_tokens),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _basis(found: PredictedCapacity) -> Tree:
    noise = found.answer.noise
    return {
        "noise_pct": None if noise is None else 100 * noise,
        "varied_nodes": found.simulator.effort.nodes,
        "varied_node_s": found.simulator.effort.nodes
        * found.simulator.effort.parts
        * found.simulator.effort.window_s,
    }


def _capacity(experiment: Experiment, answer: Solution, unsure: Uncertainty) -> Tree:
    estimate, noise = answer.root.rate_qps, answer.noise or 0.0
    away = {name: unsure.ends(share, noise) for name, share in SHARES.items()}
    ends = {name: None if ln is None else estimate * math.exp(ln) for name, ln in away.items()}
    binding = answer.point.binding
    same = sum(limit == binding for limit in unsure.bindings)
    return {
        **_figures_of(experiment, {"estimate": estimate, **ends}),
        "binding": binding,
        "binding_probability": same / len(unsure.bindings) if unsure.bindings else None,
        "open_above": ends["high"] is None,
        "open_below": ends["low"] is None,
        "at_end": False,
    }


def _open_capacity(experiment: Experiment, point: OperatingPoint) -> Tree:
    """The end of the search, where the bounds are still kept: a lower bound without an interval."""
    return {
        **_figures_of(experiment, {"estimate": experiment.search.highest_qps, **dict.fromkeys(SHARES)}),
        "binding": point.binding,
        "binding_probability": None,
        "open_above": True,
        "open_below": False,
        "at_end": True,
    }


def _figures_of(experiment: Experiment, per_node: Mapping[str, float | None]) -> Tree:
    replicas = experiment.layout.replicas_per_node
    per_replica = {name: None if value is None else value / replicas for name, value in per_node.items()}
    return {"qps_per_node": dict(per_node), "qps_per_replica": per_replica, "interval": INTERVAL}


def _end(tree: Tree, exit_code: int, reason: str) -> Tree:
    ok = exit_code == summary.EXIT_OK
    return tree | {"valid": True, "passed": ok, "exit_code": exit_code, "reason": reason}
