"""Replays of so many requests on the engine model: latencies, throughput, their intervals.

The service begins empty and all requests count, as in other tools' benchmarks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results.figures import ProbeFigures, Quantile
from analysis.results.predictions import PredictionVerdict, ReplayForecast
from analysis.rows import records
from analysis.rows.metrics import tpot_ms, ttft_ms
from analysis.stats.estimate import Estimate
from analysis.stats.quantiles import quantile
from conf import Experiment
from conf.constants import replaced
from conf.specs.bounds import ITL_WITHIN, JOINT, Limit, Slo, label, metric_of, quantile_of
from loadgen.fleet.rows import plan_table
from loadgen.predict.answer import base, judged
from loadgen.predict.draws import drawn
from loadgen.predict.operating_point import Simulate, Simulated, limited
from loadgen.predict.uncertainty import DRAWS, ParallelMap, interval_end
from loadgen.traffic.schedule import NS, ArrivalSchedule, Floats
from loadgen.traffic.traffic import Traffic

SEEDS = 16
"""Other seeds of the same replay, to see how far chance moves the answer (our choice)."""
STUDENT_T = 2.1314
"""97.5 % quantile of Student's t with SEEDS - 1 degrees of freedom."""
SAME = 1e-9
"""Relative difference below which two figures differ by rounding alone."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
FIGURES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "gap_ms", "e2e": "e2e_ms"}
"""Names of the printed latencies by those of their bounds, which call the late gap of a request its ITL."""
UNSEEN = ("queue", "itl_pooled")
"""Latencies that a replay does not see."""
THROUGHPUT = "output_tokens_per_s"
Figures = Mapping[str, float | None]
"""Figures by name; None where one does not apply."""


def unseen_limit(slo: Slo) -> str:
    """The first of the bounds whose latency a replay does not see; empty without one."""
    unseen = [label(limit) for limit in slo.limits if metric_of(limit) in UNSEEN]
    unseen += ["slo.itl_within"] if slo.itl_within != ITL_WITHIN else []
    return unseen[0] if unseen else ""


def planned(experiment: Experiment, number: int = 0) -> ArrivalSchedule:
    """The requests; every `number` above 0 draws anew what the seed leaves to chance."""
    traffic, seed, count = Traffic(experiment.workload), experiment.seed, experiment.closed_requests
    if held := experiment.concurrency:
        return traffic.closed(count, held, 0, window_index=number, first_seq=0, seed=seed)
    assert experiment.rate_qps, "a replay has a rate or a concurrency"
    rate_qps = experiment.rate_qps * experiment.cluster.nodes
    return traffic.first(count, rate_qps, window_index=number, seed=seed)


def played(
    experiment: Experiment, simulate: Simulate, schedule: ArrivalSchedule | None = None, seed: int = 0
) -> Simulated:
    """Times of all requests on the experiment's whole service, which begins empty, late gaps included.

    `seed` seeds the engine's noise. Raises ValueError for what can never be served.
    """
    # Gaps are seen where a bound asks for them.
    slo = replace(experiment.slo, at_most_ms={**experiment.slo.at_most_ms, "itl_p99": 1.0})
    schedule = schedule or planned(experiment)
    return simulate(replace(experiment, slo=slo), schedule, experiment.cluster.nodes, seed)


def predict(
    experiment: Experiment, simulate: Simulate, parallel_map: ParallelMap = map, draws: int = DRAWS
) -> PredictionVerdict:
    """The figures with their 95 % intervals, and each p90 against its bound.

    An interval holds the constants' uncertainty on the same arrivals, and the scatter of other seeds if
    chance drew any.
    """
    sets = drawn(experiment, draws)
    jobs: list[tuple[Mapping[str, float], int]] = [({}, number) for number in range(SEEDS + 1)]
    outcomes = list(
        parallel_map(partial(_figures, experiment, simulate), [*jobs, *((values, 0) for values in sets)])
    )
    values, others, varied = outcomes[0], outcomes[1 : SEEDS + 1], outcomes[SEEDS + 1 :]
    figures = {name: _estimate(name, values, varied, others) for name in values}
    slo = experiment.slo
    bounds = {bound.limit: figures.pop(bound.limit) for bound in slo.bounds}
    served = figures["requests_per_s"]
    probe = ProbeFigures(
        loop="closed" if experiment.concurrency else "open",
        concurrency=experiment.concurrency,
        rate_qps_per_node=experiment.rate_qps or (served.value if served else 0.0) / experiment.cluster.nodes,
        limits={limit: _quantile(slo, limit, figure) for limit, figure in bounds.items()},
    )
    schedule = planned(experiment)
    forecast = ReplayForecast(
        requests=experiment.closed_requests,
        concurrency=experiment.concurrency,
        rate_qps_per_node=experiment.rate_qps,
        input_tokens=float(schedule.input_tokens.mean()),
        output_tokens=float(schedule.output_tokens.mean()),
        figures=figures,
        seeds=SEEDS,
        other_seeds=_by_chance({name: values[name] for name in figures}, others),
        draws=len(sets),
        constants_sampled=tuple(sets[0]) if sets else (),
        kept_probability=_kept(slo, varied),
        ln_throughput=tuple(map(_ln_throughput, varied)),
        ln_throughput_of_seeds=tuple(map(_ln_throughput, others)),
    )
    return judged(base(experiment, replay=forecast, probe=probe), probe.missed)


def _figures(
    experiment: Experiment, simulate: Simulate, job: tuple[Mapping[str, float], int]
) -> dict[str, float | None]:
    """All figures by name, under other constants or with another draw of what is left to chance."""
    constants, number = job
    schedule = planned(experiment, number)
    times = played(replaced(experiment, constants), simulate, schedule, experiment.seed + number)
    latencies = latencies_ms(schedule, times)
    took_s = float(times.last_s.max())
    outputs, inputs = int(schedule.output_tokens.sum()), int(schedule.input_tokens.sum())
    return {
        **{
            f"{FIGURES[metric]}.{place}": quantile(values, share)
            for metric, values in latencies.items()
            for place, share in QUANTILES.items()
        },
        "requests_per_s": len(schedule) / took_s,
        THROUGHPUT: outputs / took_s,
        "total_tokens_per_s": (inputs + outputs) / took_s,
        "makespan_s": took_s,
        **_of_bounds(experiment.slo, latencies),
    }


def _of_bounds(slo: Slo, latencies_ms: Mapping[str, Floats]) -> dict[str, float | None]:
    """Each limited quantile by its bound; of a joint bound the share of requests that keep all others."""
    limits = {limit: limited(latencies_ms, slo, limit) for limit in slo.limits}
    return {
        limit: float((values <= 1).mean())
        if metric_of(limit) == JOINT
        else quantile(values, quantile_of(limit))
        for limit, values in limits.items()
    }


def latencies_ms(schedule: ArrivalSchedule, times: Simulated) -> dict[str, Floats]:
    """TTFT, TPOT, late gap and E2E of every request in ms, by `analysis.rows.metrics`."""
    assert times.own_itl_s is not None
    outputs = schedule.output_tokens.astype(np.float64)
    return {
        "ttft": ttft_ms(times.sent_s, times.first_s),
        "tpot": tpot_ms(times.first_s, times.last_s, outputs),
        "itl": times.own_itl_s * 1e3,
        "e2e": (times.last_s - times.sent_s) * 1e3,
    }


def request_rows(schedule: ArrivalSchedule, times: Simulated) -> pa.Table:
    """A row per request in order of sending, times in seconds; null if a figure does not apply."""
    latencies = latencies_ms(schedule, times)
    columns = {
        "request": schedule.seq,
        "due_s": times.sent_s,
        "input_tokens": schedule.input_tokens,
        "output_tokens": schedule.output_tokens,
    }
    for metric, values in latencies.items():
        columns[f"{metric}_s"] = pa.array(values / 1e3, pa.float64(), from_pandas=True)
    return pa.table(columns | {"replica": times.replica})


def progress_rows(schedule: ArrivalSchedule, times: Simulated) -> pa.Table:
    """Rows of schema `PROGRESS` for a closed loop that has ended; a request is due when it is sent."""
    due_ns = np.rint(times.sent_s * NS).astype(np.int64)
    first, last = (
        pa.array(np.rint(at_s * NS).astype(np.int64) - due_ns) for at_s in (times.first_s, times.last_s)
    )
    count, plan = len(schedule), plan_table(schedule)
    columns: dict[str, Any] = {
        **dict(zip(plan.column_names, plan.columns, strict=True)),
        "client_id": pa.array(np.zeros(count, dtype=np.int16)),
        "due_ns": pa.array(due_ns),
        "status": pa.repeat(records.OK, count),
        "replica_id": pa.repeat("0", count),
        "send_offset_ns": pa.array(np.zeros(count, dtype=np.int64)),
        "first_token_offset_ns": first,
        "last_token_offset_ns": last,
        "end_offset_ns": last,
        "prompt_tokens": pa.array(schedule.input_tokens, pa.int32()),
        "cached_tokens": pa.array(times.cached_tokens, pa.int32()),
        "output_tokens": pa.array(schedule.output_tokens, pa.int32()),
    }
    return pa.table(records.empty(records.PROGRESS, count) | columns, schema=records.PROGRESS)


def _ln_throughput(figures: Figures) -> float:
    return math.log(figures[THROUGHPUT] or math.nan)


def _estimate(
    name: str, values: Figures, varied: Sequence[Figures], others: Sequence[Figures]
) -> Estimate | None:
    """One figure with its 95 % interval: from the constants' draws, and from one more seed (Student's t)."""
    value = values[name]
    if not value:
        return None if value is None else Estimate(value, value, value)
    moved, chance = (
        np.array([math.log(drawn / value) for each in all_of if (drawn := each[name])])
        for all_of in (varied, others)
    )
    low, high = spread(moved, chance)
    return Estimate(value, value * math.exp(low), value * math.exp(high))


def spread(moved: Floats, chance: Floats) -> tuple[float, float]:
    """Distances in ln of a 95 % interval's ends from a value.

    `moved` are the draws of the constants; `chance` is the scatter of other seeds, of which one more follows
    Student's t.
    """
    centre = float(chance.mean()) if len(chance) else 0.0
    around = (
        STUDENT_T * float(chance.std(ddof=1)) * math.sqrt(1 + 1 / len(chance)) if len(chance) > 1 else 0.0
    )
    low, high = (
        interval_end(moved.tolist(), share, max(0.0, side * centre + around))
        for side, share in ((-1, 0.025), (1, 0.975))
    )
    return low, high


def _by_chance(values: Figures, others: Sequence[Figures]) -> dict[str, Estimate | None]:
    """The ends of every figure under a further seed; empty where chance moves nothing."""
    same = all(
        math.isclose(other[name] or 0.0, value or 0.0, rel_tol=SAME)
        for other in others
        for name, value in values.items()
    )
    return {} if same else {name: _estimate(name, values, [], others) for name in values}


def _quantile(slo: Slo, limit: Limit, figure: Estimate | None) -> Quantile:
    passed = None if figure is None else _keeps(slo, limit, figure.value)
    if metric_of(limit) == JOINT:
        share = figure.value if figure else None
        return Quantile(ms=None, bound_ms=slo.bound_ms(limit), passed=passed, share=share)
    return Quantile(ms=figure, bound_ms=slo.bound_ms(limit), passed=passed)


def _keeps(slo: Slo, limit: Limit, figure: float) -> bool:
    return figure >= quantile_of(limit) if metric_of(limit) == JOINT else figure <= slo.bound_ms(limit)


def _kept(slo: Slo, varied: Sequence[Figures]) -> float | None:
    """Share of the draws that keep every bound; a quantile that does not apply misses none."""
    if not varied:
        return None
    kept = [
        all((figure := figures[limit]) is None or _keeps(slo, limit, figure) for limit in slo.limits)
        for figures in varied
    ]
    return sum(kept) / len(kept)
