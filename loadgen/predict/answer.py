"""The engine model's verdict on a service: its capacity, or one rate. The engine model is handed in."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.results import summary
from analysis.results.experiment_facts import constants_basis, describe
from analysis.results.figures import CapacityFigures, ProbeFigures, Quantile
from analysis.results.predictions import NoiseForecast, PredictionVerdict, RateForecast, SessionForecast
from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import least_values
from conf.specs.bounds import JOINT, LIMITS, Limit, label, metric_of, quantile_of
from conf.specs.experiment import Experiment, Search, SimulatedEngine
from loadgen.predict.capacity import (
    MANY_NODES,
    QUICK_S,
    PredictedCapacity,
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
    Uncertainty,
    quantile_draws,
    sensitivities,
    uncertainty,
)
from loadgen.traffic.prefix_sharing import cache_warmup_s, reusable_share, sessions_alive

INTERVAL = "95 %: sampled uncertainty of the constants, and Monte Carlo noise; certified is the 5 % quantile"
SHARES = {"low": 0.025, "high": 0.975, "certified": 0.05}
UNGUESSED_QPS = 5.0
"""Rate at which the search begins without a guess."""


@dataclass(frozen=True, slots=True)
class NodePeaks:
    """Limits of a node's replicas: KV capacity, peak FLOP/s in the weights' type, FLOP that a token needs.

    `shares` gives the busy time by term from the sums of a run. The KV of engines that compute prompts alone
    is not counted. An unknown peak is None.
    """

    kv_tokens: float
    peak_flop_per_s: float | None
    flop_per_token: float
    flop_per_pair: float
    shares: Callable[[Mapping[str, float]], dict[str, float]]


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
    prediction = predicted_capacity(experiment, model.simulate, guess, machine.kv_tokens)
    answer, simulator = prediction.answer, prediction.simulator
    point, side = answer.point, answer.root.side
    forecast = replace(_forecast(experiment, point, machine), noise=_noise(prediction))
    if side:
        of_rate = quantile_draws(simulator, point.rate_qps, draws, parallel_map).summed
        forecast = replace(forecast, of_rate=of_rate)
    verdict = base(experiment, forecast=forecast)
    if side < 0:
        why = missed_alone(simulator, point.binding)
    else:
        why = "" if side else missed_beside_prompt(point, simulator.experiment, model.simulate)
    if why:
        verdict = replace(verdict, forecast=replace(forecast, noise=None), no_rate=True)
        return _ended(verdict, summary.EXIT_SLO_MISSED, why)
    name = label(point.binding)
    if side < 0:
        low = f"even at {point.rate_qps:g} QPS per node (search.lowest_qps) {name} is over its bound"
        return _ended(verdict, summary.EXIT_SLO_MISSED, low)
    if answer.jumps:
        jump = f"{name} jumps over its bound near {point.rate_qps:.2g} QPS per node"
        return _ended(verdict, summary.EXIT_OPEN, f"{jump}, so that no interval follows from how it grows")
    if side > 0:
        why = f"the bounds are kept even at {point.rate_qps:g} QPS per node (search.highest_qps); raise it"
        if not point.steady:
            why += (
                "; the queue grew all along there, so that bounds so wide are missed later than was watched"
            )
        # The end of the search where the bounds are still kept: a lower bound, without an interval.
        capacity = _capacity(experiment, point, Estimate.at_least(experiment.search.highest_qps))
        return _ended(replace(verdict, capacity=replace(capacity, at_end=True)), summary.EXIT_OPEN, why)
    unsure = uncertainty(prediction, draws, parallel_map)
    away = {name: unsure.ends(share, answer.noise or 0.0) for name, share in SHARES.items()}
    rate_qps = answer.root.rate_qps
    ends = {name: None if ln is None else rate_qps * math.exp(ln) for name, ln in away.items()}
    capacity = _capacity(experiment, point, Estimate(rate_qps, **ends), unsure)
    verdict = replace(
        verdict,
        forecast=replace(forecast, of_capacity=unsure.draws if draws else None),
        capacity=capacity,
        sensitivity=sensitivities(prediction, parallel_map) if sensitivity else None,
    )
    why = _beyond(experiment.search, capacity, unsure)
    return _ended(verdict, summary.EXIT_OPEN if why else summary.EXIT_OK, why)


def _capacity(
    experiment: Experiment, point: OperatingPoint, per_node: Estimate, unsure: Uncertainty | None = None
) -> CapacityFigures:
    bindings = unsure.bindings if unsure else ()
    same = sum(limit == point.binding for limit in bindings)
    return CapacityFigures(
        qps_per_node=per_node,
        qps_per_replica=per_node.per(experiment.layout.replicas_per_node),
        interval=INTERVAL,
        binding=point.binding,
        binding_probability=same / len(bindings) if bindings else None,
        open_above=per_node.high is None,
        open_below=unsure is not None and per_node.low is None,
        at_end=False,
    )


def _beyond(search: Search, capacity: CapacityFigures, unsure: Uncertainty) -> str:
    """The reason why an end of the interval is unknown; empty if both are known."""
    reasons, draws = [], unsure.draws
    of = f"of {draws.draws} draws of the constants"
    if capacity.open_below:
        lowest = f"{search.lowest_qps:g} QPS per node (search.lowest_qps); lower it"
        reasons.append(f"a bound is missed in {draws.open_draws_below} {of} even at {lowest}")
    if capacity.open_above:
        highest = f"{search.highest_qps:g} QPS per node (search.highest_qps); raise it"
        reasons.append(f"the bounds are kept in {draws.open_draws_above} {of} even at {highest}")
    return "; ".join(reasons)


def at_rate(
    experiment: Experiment, model: EngineModel, parallel_map: ParallelMap = map, draws: int = DRAWS
) -> PredictionVerdict:
    """The engine model's verdict on one rate, `rate_qps` per node: each p90 against its bound.

    The intervals hold the constants' uncertainty and Monte Carlo noise.
    """
    assert experiment.rate_qps
    machine, nodes = model.machine(experiment), simulated_nodes(experiment)
    rough, simulator = (
        RateSimulator(
            experiment,
            model.simulate,
            Effort.from_budget(budget_s, count, experiment.workload.has_sessions),
            machine.kv_tokens,
        )
        for budget_s, count in ((QUICK_S, min(nodes, MANY_NODES)), (experiment.search.budget_s, nodes))
    )
    point = simulator.at(experiment.rate_qps)
    drawn = quantile_draws(rough, experiment.rate_qps, draws, parallel_map)
    of_rate = drawn.summed if point.requests else None
    verdict = base(
        experiment,
        forecast=replace(_forecast(experiment, point, machine), of_rate=of_rate),
        probe=ProbeFigures(
            rate_qps_per_node=experiment.rate_qps,
            window_s=simulator.effort.window_s,
            limits={limit: _limit(drawn, point, limit) for limit in point.slo.limits},
        ),
    )
    missed = [limit for limit in point.slo.limits if point.excess(limit) > 0]
    if not missed and not point.requests:
        return _ended(
            verdict, summary.EXIT_OPEN, "no request came in the simulated time; raise search.budget_s"
        )
    return judged(verdict, missed)


def judged(verdict: PredictionVerdict, missed: Sequence[Limit]) -> PredictionVerdict:
    """The verdict by the bounds that are missed."""
    if not missed:
        return _ended(verdict, summary.EXIT_OK, "")
    return _ended(verdict, summary.EXIT_SLO_MISSED, f"{' and '.join(map(label, missed))} over the bound")


def _limit(drawn: QuantileDraws, point: OperatingPoint, limit: Limit) -> Quantile:
    """A limited quantile at the point, with the constants' uncertainty."""
    bound_ms = point.bound_ms(limit)
    figure = drawn.figure(limit, point.quantile_ms(limit), point.interval_ms(limit), bound_ms)
    if metric_of(limit) != JOINT:
        least, samples = least_values(quantile_of(limit)), len(point.latency(limit))
        return replace(figure, needs=None if figure.has_interval or samples >= least else least)
    share = float(np.mean(point.latency(limit) <= bound_ms))
    return Quantile(ms=None, bound_ms=math.inf, passed=figure.passed, share=share)


def base(experiment: Experiment, **parts: Any) -> PredictionVerdict:
    """The verdict with what was asked and what its constants rest on; `parts` are fields of the answer."""
    engine = experiment.engine
    return PredictionVerdict(
        experiment=describe(experiment),
        calibration=engine.constants if isinstance(engine, SimulatedEngine) else "",
        constants=constants_basis(experiment),
        exit_code=summary.EXIT_OK,
        **parts,
    )


def _forecast(experiment: Experiment, point: OperatingPoint, machine: NodePeaks) -> RateForecast:
    """One node at the rate of the point; requests in flight by Little's law, which needs `steady`."""
    rate, new = point.served_qps, point.input_tokens - point.cached_tokens
    pairs = new * (point.cached_tokens + new / 2)
    decoded = point.output_tokens * (point.input_tokens + point.output_tokens / 2)
    flop = machine.flop_per_token * (new + point.output_tokens) + machine.flop_per_pair * (pairs + decoded)
    # p90 TTFT and p90 TPOT, bounded or not, and the quantile of every other bound.
    limits = dict.fromkeys((*LIMITS, *(limit for limit in point.slo.limits if metric_of(limit) != JOINT)))
    prefill_busy_s = point.work.get("prefill_busy_s", math.nan) / point.load_s
    layout = experiment.layout
    return RateForecast(
        rate_qps_per_node=point.rate_qps,
        steady=point.steady,
        limits_ms={limit: point.quantile_ms(limit) for limit in limits},
        input_tokens_per_s_per_node=_known(rate * point.input_tokens),
        image_tokens_per_s_per_node=_known(rate * point.image_tokens),
        output_tokens_per_s_per_node=_known(rate * point.output_tokens),
        cached_share_of_input=_known(point.cached_tokens / point.input_tokens),
        in_flight_per_node=_known(rate * point.e2e_s) if point.steady else None,
        kv_used=_known(point.work["kv_token_seconds"] / point.load_s / machine.kv_tokens),
        busy=_known(point.work["busy_s"] / point.load_s / layout.replicas_per_node),
        prefill_busy=_known(prefill_busy_s / layout.prefill.per_node) if layout.prefill else None,
        mfu=_known(rate * flop / machine.peak_flop_per_s) if machine.peak_flop_per_s else None,
        step_terms=machine.shares(point.work),
        requests=point.requests,
        simulated_node_s=point.load_s,
        sessions=_sessions(experiment, point, machine),
    )


def _sessions(experiment: Experiment, point: OperatingPoint, machine: NodePeaks) -> SessionForecast | None:
    outcome, workload = point.routing_outcome, experiment.workload
    if outcome is None:
        return None
    nodes = experiment.cluster.nodes
    alive = sessions_alive(workload, point.rate_qps, nodes) or 0.0
    return SessionForecast(
        replicas_per_session=outcome.replicas_per_session,
        max_over_mean_share=outcome.max_over_mean_share,
        blocked_share=outcome.blocked_share,
        reusable_share_of_input=reusable_share(workload),
        sessions_per_node=alive,
        sessions_over_kv=alive * workload.input_tokens.mean / machine.kv_tokens,
        simulated_nodes=outcome.replicas // experiment.layout.replicas_per_node,
        fill_s=cache_warmup_s(workload, point.rate_qps, nodes, machine.kv_tokens),
    )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _noise(prediction: PredictedCapacity) -> NoiseForecast:
    noise, effort = prediction.answer.noise, prediction.simulator.effort
    return NoiseForecast(
        noise_pct=None if noise is None else 100 * noise,
        varied_nodes=effort.nodes,
        varied_node_s=effort.nodes * effort.parts * effort.window_s,
    )


def _ended(verdict: PredictionVerdict, exit_code: int, reason: str) -> PredictionVerdict:
    return replace(verdict, passed=exit_code == summary.EXIT_OK, exit_code=exit_code, reason=reason)
