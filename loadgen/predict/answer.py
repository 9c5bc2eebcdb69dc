"""The engine model's verdict on a service, at one operating point.

The engine model is handed in.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from analysis.results import summary
from analysis.results.asked import constants_basis, describe
from analysis.results.figures import CapacityFigures, ProbeFigures, Quantile
from analysis.results.predictions import (
    CapacityDraws,
    NoiseForecast,
    PredictionVerdict,
    RateForecast,
    SessionForecast,
)
from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import least_values, quantile
from conf.specs.bounds import JOINT, LIMITS, Limit, label, metric_of, quantile_of
from conf.specs.experiment import Experiment, Search, SimulatedEngine
from loadgen.predict.capacity import (
    MANY_NODES,
    QUICK_S,
    PredictedCapacity,
    Solution,
    missed_alone,
    missed_beside_prompt,
    predicted_capacity,
    simulated_nodes,
)
from loadgen.predict.operating_point import Effort, OperatingPoint, RateSimulator, Simulate
from loadgen.predict.uncertainty import (
    DRAWS,
    ParallelMap,
    QuantileDraws,
    SimulatedQuantiles,
    Uncertainty,
    figures,
    sensitivities,
    uncertainty,
    under_draws,
)
from loadgen.traffic.prefix_sharing import cache_warmup_s, reusable_share, sessions_alive

INTERVAL = "95 %: sampled uncertainty of the constants, and Monte Carlo noise; certified is the 5 % quantile"
SHARES = {"low": 0.025, "high": 0.975, "certified": 0.05}
UNGUESSED_QPS = 5.0
"""Rate at which the search begins without a guess."""


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Limits of a node's `replicas`: KV capacity, peak FLOP/s in the weights' type (None if unknown), FLOP of
    a token.

    The FLOP are those that the model needs. `shares` gives the busy time by term from the sums of a run. A
    split node has `prefill_engines` besides, whose KV is not counted.
    """

    replicas: int
    kv_tokens: float
    peak_flop_per_s: float | None
    flop_per_token: float
    flop_per_pair: float
    shares: Callable[[Mapping[str, float]], dict[str, float]]
    prefill_engines: int = 0


@dataclass(frozen=True, slots=True)
class EngineModel:
    """The engine model as handed in; `guess_qps` is QPS per node by the roofline alone."""

    simulate: Simulate
    machine: Callable[[Experiment], NodePeaks]
    guess_qps: Callable[[Experiment], float | None]


def predict(
    experiment: Experiment,
    model: EngineModel,
    parallel_map: ParallelMap = map,
    draws: int = DRAWS,
    sensitivity: bool = False,
) -> PredictionVerdict:
    """The capacity with its interval, in the form of a run's verdict with `clock` = `virtual`.

    With `draws` = 0 the interval is Monte Carlo noise alone, without the constants' uncertainty.
    """
    guess = experiment.search.expected_qps or model.guess_qps(experiment) or UNGUESSED_QPS
    machine = model.machine(experiment)
    capacity_found = predicted_capacity(experiment, model.simulate, guess, machine.kv_tokens)
    point, side = capacity_found.answer.point, capacity_found.answer.root.side
    at_point = replace(_figures(experiment, point, machine), noise=_noise(capacity_found))
    if side:
        at_point = replace(
            at_point,
            of_rate=_under_draws(capacity_found.simulator, point.rate_qps, draws, parallel_map).summed,
        )
    verdict = base(experiment, forecast=at_point)
    if why := _no_rate(capacity_found, model):
        verdict = replace(verdict, forecast=replace(at_point, noise=None), no_rate=True)
        return _ended(verdict, summary.EXIT_SLO_MISSED, why)
    if side < 0:
        low = f"even at {point.rate_qps:g} QPS per node (search.lowest_qps) {label(point.binding)} is over"
        return _ended(verdict, summary.EXIT_SLO_MISSED, f"{low} its bound")
    if capacity_found.answer.jumps:
        return _ended(verdict, summary.EXIT_OPEN, _jump(point))
    if side > 0:
        why = f"the bounds are kept even at {point.rate_qps:g} QPS per node (search.highest_qps); raise it"
        if not point.steady:
            why += (
                "; the queue grew all along there, so that bounds so wide are missed later than was watched"
            )
        verdict = replace(verdict, capacity=_open_capacity(experiment, point))
        return _ended(verdict, summary.EXIT_OPEN, why)
    unsure = uncertainty(capacity_found, draws, parallel_map)
    capacity = _capacity(experiment, capacity_found.answer, unsure)
    verdict = replace(
        verdict,
        forecast=replace(at_point, of_capacity=_draws(unsure) if draws else None),
        capacity=capacity,
        sensitivity=sensitivities(capacity_found, parallel_map) if sensitivity else None,
    )
    why = _beyond(experiment.search, capacity, unsure)
    return _ended(verdict, summary.EXIT_OPEN if why else summary.EXIT_OK, why)


def _no_rate(found: PredictedCapacity, model: EngineModel) -> str:
    """The reason why no rate keeps a bound; empty if there may be one."""
    point, side = found.answer.point, found.answer.root.side
    if side < 0:
        return missed_alone(found.simulator, point.binding)
    return "" if side else missed_beside_prompt(point, found.simulator.experiment, model.simulate)


def _jump(point: OperatingPoint) -> str:
    """The reason why no interval follows from the latencies around a rate."""
    name, rate = label(point.binding), f"{point.rate_qps:.2g} QPS per node"
    return f"{name} jumps over its bound near {rate}, so that no interval follows from how it grows"


def _draws(unsure: Uncertainty) -> CapacityDraws:
    return CapacityDraws(
        draws=len(unsure.ln_ratios),
        open_draws_below=unsure.open_below,
        open_draws_above=unsure.open_above,
        constants_sampled=tuple(unsure.sampled),
        ln_ratios=tuple(unsure.ln_ratios),
    )


def _under_draws(
    simulator: RateSimulator, rate_qps: float, draws: int, parallel_map: ParallelMap
) -> QuantileDraws:
    return under_draws(simulator.experiment, partial(_seen, simulator, rate_qps), draws, parallel_map)


def _seen(simulator: RateSimulator, rate_qps: float, experiment: Experiment) -> SimulatedQuantiles:
    point = simulator.varied(experiment).at(rate_qps)
    quantiles_ms = {limit: point.quantile_ms(limit) for limit in point.slo.limits}
    return SimulatedQuantiles(quantiles_ms, point.worst <= 0, point.steady)


def _beyond(search: Search, capacity: CapacityFigures, unsure: Uncertainty) -> str:
    """The reason why an end of the interval is unknown; empty if both are known."""
    out, of = [], f"of {len(unsure.ln_ratios)} draws of the constants"
    if capacity.open_below:
        lowest = f"{search.lowest_qps:g} QPS per node (search.lowest_qps); lower it"
        out.append(f"a bound is missed in {unsure.open_below} {of} even at {lowest}")
    if capacity.open_above:
        highest = f"{search.highest_qps:g} QPS per node (search.highest_qps); raise it"
        out.append(f"the bounds are kept in {unsure.open_above} {of} even at {highest}")
    return "; ".join(out)


def at_rate(
    experiment: Experiment, model: EngineModel, parallel_map: ParallelMap = map, draws: int = DRAWS
) -> PredictionVerdict:
    """The engine model's verdict on one rate, `rate_qps` per node: each p90 against its bound.

    The intervals hold the constants' uncertainty and Monte Carlo noise; the verdict counts the draws that
    keep the bounds.
    """
    assert experiment.rate_qps
    machine, whole = model.machine(experiment), experiment.workload.has_sessions
    nodes, kv_tokens = simulated_nodes(experiment), machine.kv_tokens
    rough = RateSimulator(
        experiment, model.simulate, Effort.from_budget(QUICK_S, min(nodes, MANY_NODES), whole), kv_tokens
    )
    effort = Effort.from_budget(experiment.search.budget_s, nodes, whole)
    simulator = RateSimulator(experiment, model.simulate, effort, kv_tokens)
    point = simulator.at(experiment.rate_qps)
    known, came = _under_draws(rough, experiment.rate_qps, draws, parallel_map), len(point.ttft_ms) > 0
    missed = [label(limit) for limit in point.slo.limits if point.excess(limit) > 0]
    verdict = base(
        experiment,
        forecast=replace(_figures(experiment, point, machine), of_rate=known.summed if came else None),
        probe=ProbeFigures(
            rate_qps_per_node=experiment.rate_qps,
            window_s=simulator.effort.window_s,
            limits={limit: _limit(known, point, limit) for limit in point.slo.limits},
        ),
    )
    if missed:
        return _ended(verdict, summary.EXIT_SLO_MISSED, f"{' and '.join(missed)} over the bound")
    if not came:
        return _ended(
            verdict, summary.EXIT_OPEN, "no request came in the simulated time; raise search.budget_s"
        )
    return _ended(verdict, summary.EXIT_OK, "")


def _limit(known: QuantileDraws, point: OperatingPoint, limit: Limit) -> Quantile:
    """A limited quantile at the point, with the constants' uncertainty."""
    quantile_ms, bound_ms = point.quantile_ms(limit), point.bound_ms(limit)
    found = figures(known, limit, quantile_ms, point.interval_ms(limit), bound_ms)
    if metric_of(limit) != JOINT:
        least, seen = least_values(quantile_of(limit)), len(point.latency(limit))
        return replace(found, needs=None if found.has_interval or seen >= least else least)
    share = float(np.mean(point.latency(limit) <= bound_ms))
    return Quantile(ms=None, bound_ms=math.inf, passed=found.passed, share=share)


def base(experiment: Experiment, **parts: Any) -> PredictionVerdict:
    """The verdict with what was asked and what its constants rest on; `parts` are fields of the answer."""
    engine = experiment.engine
    return PredictionVerdict(
        asked=describe(experiment),
        calibration=engine.constants if isinstance(engine, SimulatedEngine) else "",
        constants=constants_basis(experiment),
        exit_code=summary.EXIT_OK,
        **parts,
    )


def _figures(experiment: Experiment, point: OperatingPoint, machine: NodePeaks) -> RateForecast:
    """One node at the rate of the point; requests in flight by Little's law, which needs `steady`."""
    rate, new = point.served_qps, point.input_tokens - point.cached_tokens
    pairs = new * (point.cached_tokens + new / 2)
    decoded = point.output_tokens * (point.input_tokens + point.output_tokens / 2)
    flop = machine.flop_per_token * (new + point.output_tokens) + machine.flop_per_pair * (pairs + decoded)
    return RateForecast(
        rate_qps_per_node=point.rate_qps,
        steady=point.steady,
        limits_ms=_limits_ms(point),
        input_tokens_per_s_per_node=_known(rate * point.input_tokens),
        image_tokens_per_s_per_node=_known(rate * point.image_tokens),
        output_tokens_per_s_per_node=_known(rate * point.output_tokens),
        cached_share_of_input=_known(point.cached_tokens / point.input_tokens),
        in_flight_per_node=_known(rate * point.e2e_s) if point.steady else None,
        kv_used=_known(point.work["kv_token_seconds"] / point.load_s / machine.kv_tokens),
        busy=_known(point.work["busy_s"] / point.load_s / machine.replicas),
        prefill_busy=_prefill_busy(point, machine),
        mfu=_known(rate * flop / machine.peak_flop_per_s) if machine.peak_flop_per_s else None,
        step_terms=machine.shares(point.work),
        requests=len(point.ttft_ms),
        simulated_node_s=point.load_s,
        sessions=_sessions(experiment, point, machine),
    )


def _limits_ms(point: OperatingPoint) -> dict[Limit, float | None]:
    """p90 TTFT and p90 TPOT at the point, bounded or not, and the quantile of every other bound."""
    limits = dict.fromkeys((*LIMITS, *(limit for limit in point.slo.limits if metric_of(limit) != JOINT)))
    return {limit: quantile(point.latency(limit), quantile_of(limit)) for limit in limits}


def _sessions(experiment: Experiment, point: OperatingPoint, machine: NodePeaks) -> SessionForecast | None:
    seen, workload = point.routing_outcome, experiment.workload
    if seen is None:
        return None
    nodes = experiment.cluster.nodes
    alive = sessions_alive(workload, point.rate_qps, nodes) or 0.0
    return SessionForecast(
        replicas_per_session=seen.replicas_per_session,
        max_over_mean_share=seen.max_over_mean_share,
        blocked_share=seen.blocked_share,
        reusable_share_of_input=reusable_share(workload),
        sessions_per_node=alive,
        sessions_over_kv=alive * workload.input_tokens.mean / machine.kv_tokens,
        simulated_nodes=seen.replicas // machine.replicas,
        fill_s=cache_warmup_s(workload, point.rate_qps, nodes, machine.kv_tokens),
    )


def _prefill_busy(point: OperatingPoint, machine: NodePeaks) -> float | None:
    busy_s = point.work.get("prefill_busy_s", math.nan)
    return _known(busy_s / point.load_s / machine.prefill_engines) if machine.prefill_engines else None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _noise(found: PredictedCapacity) -> NoiseForecast:
    noise, effort = found.answer.noise, found.simulator.effort
    return NoiseForecast(
        noise_pct=None if noise is None else 100 * noise,
        varied_nodes=effort.nodes,
        varied_node_s=effort.nodes * effort.parts * effort.window_s,
    )


def _capacity(experiment: Experiment, answer: Solution, unsure: Uncertainty) -> CapacityFigures:
    estimate, noise = answer.root.rate_qps, answer.noise or 0.0
    away = {name: unsure.ends(share, noise) for name, share in SHARES.items()}
    ends = {name: None if ln is None else estimate * math.exp(ln) for name, ln in away.items()}
    binding = answer.point.binding
    same = sum(limit == binding for limit in unsure.bindings)
    per_node = Estimate(estimate, **ends)
    return CapacityFigures(
        qps_per_node=per_node,
        qps_per_replica=per_node.per(experiment.layout.replicas_per_node),
        interval=INTERVAL,
        binding=binding,
        binding_probability=same / len(unsure.bindings) if unsure.bindings else None,
        open_above=ends["high"] is None,
        open_below=ends["low"] is None,
        at_end=False,
    )


def _open_capacity(experiment: Experiment, point: OperatingPoint) -> CapacityFigures:
    """The end of the search where the bounds are still kept: a lower bound, without an interval."""
    per_node = Estimate.at_least(experiment.search.highest_qps)
    return CapacityFigures(
        qps_per_node=per_node,
        qps_per_replica=per_node.per(experiment.layout.replicas_per_node),
        interval=INTERVAL,
        binding=point.binding,
        open_above=True,
        at_end=True,
    )


def _ended(verdict: PredictionVerdict, exit_code: int, reason: str) -> PredictionVerdict:
    return replace(verdict, passed=exit_code == summary.EXIT_OK, exit_code=exit_code, reason=reason)
