"""Replays of so many requests on the engine model: latencies, throughput, their intervals.

Knows what is sent and how an answer's figures are taken; the engine model is handed in. The service begins
empty, and all requests count, as in other tools' benchmarks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.capacity.posterior import LIMITS
from analysis.results import summary
from analysis.results.types.prediction_verdict import FigureWithEnds, PredictionVerdict, ReplayForecast
from analysis.results.types.probe_figures import P90Figures, ProbeFigures
from analysis.results.types.shared_figures import RatioFigures
from analysis.rows.metrics import tpot_ms, ttft_ms
from analysis.stats.quantiles import quantile
from conf import ConfigError, Experiment
from conf.constants import replaced
from loadgen.predict.answer import base
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import DRAWS, Spread, drawn_quantile
from loadgen.traffic.schedule import ArrivalSchedule, Traffic
from loadgen.traffic.vllm_bench_arrivals import MOST_SEED

Floats = NDArray[np.float64]
SEEDS = 16
"""Other seeds under which the same is replayed, to see how far chance moves the answer (our choice)."""
STUDENT_T = 2.1314
"""97.5 % quantile of Student's t with SEEDS - 1 degrees of freedom."""
SAME = 1e-9
"""Two figures that differ by less do so by rounding alone."""
MOST_REQUESTS = 50_000
"""More are a steady state, which rate_qps without requests answers at less cost (our choice)."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LATENCIES = ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms")
THROUGHPUT = "output_tokens_per_s"
Figures = Mapping[str, float | None]
"""Figures by name; None where one does not apply."""


class Replayed(NamedTuple):
    """What became of every request, in order of sending: seconds from the start of the load.

    `sent_s` is the due time, in a closed loop when a request before it ended; `gap_s` the 99 % quantile of
    the gaps between its tokens, nan where there are none or where they are unknown.
    """

    sent_s: Floats
    first_s: Floats
    last_s: Floats
    gap_s: Floats
    replica: NDArray[np.int64]


Play = Callable[[Experiment, ArrivalSchedule, int], Replayed]
"""(experiment, arrivals, seed of the engine's noise); raises ValueError for what can never be served."""


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for what a replay of so many requests does not know, and what it alone knows."""
    workload, kind, seed = experiment.workload, experiment.workload.arrivals.kind, experiment.seed
    if not experiment.is_replay:
        if kind == "vllm_bench":
            raise ConfigError(
                "workload.arrivals.kind=vllm_bench is so many requests at a rate; add rate_qps=... requests=N"
            )
        return
    if workload.has_sessions:
        raise ConfigError(
            "a replay begins with an empty service, which no session has met; leave workload.sessions and "
            "workload.conversations out, or requests=... and concurrency=..."
        )
    if experiment.streams > 1:
        raise ConfigError(
            f"requests=... come to one service but routing=per_node makes {experiment.streams}; use "
            "routing=leastconn or one node"
        )
    if kind == "trace":
        raise ConfigError("workload.arrivals.kind=trace has requests of its own; leave requests=... out")
    if kind == "vllm_bench" and seed > MOST_SEED:
        raise ConfigError(f"seed={seed}: vllm bench serve takes 0 to {MOST_SEED}")
    if (count := asked_requests(experiment)) > MOST_REQUESTS:
        raise ConfigError(
            f"requests={count} are more than the {MOST_REQUESTS} of a replay; lower them, or ask for the "
            "steady state: rate_qps=... alone"
        )


def asked_requests(experiment: Experiment) -> int:
    """How many requests are replayed."""
    return experiment.closed_requests if experiment.requests is None else experiment.requests


def planned(experiment: Experiment, number: int = 0) -> ArrivalSchedule:
    """What is sent; every `number` above 0 draws anew what the seed leaves to chance."""
    traffic, seed, count = Traffic(experiment.workload), experiment.seed, asked_requests(experiment)
    if held := experiment.concurrency:
        return traffic.closed(count, held, 0, dwell=number, first_seq=0, seed=seed)
    assert experiment.rate_qps, "a replay has a rate or a concurrency"
    rate_qps = experiment.rate_qps * experiment.cluster.nodes
    return traffic.first(count, rate_qps, dwell=number, seed=seed)


def predict(
    experiment: Experiment, play: Play, spread: Spread = map, draws: int = DRAWS
) -> PredictionVerdict:
    """The figures with their 95 % intervals, and each p90 against its bound.

    An interval is that of the constants, on the same arrivals; where chance drew the arrivals or lengths, how
    far other seeds lie is part of it.
    """
    figures_of = partial(_figures, experiment, play)
    sets = drawn(experiment, draws)
    jobs: list[tuple[Mapping[str, float], int]] = [({}, number) for number in range(SEEDS + 1)]
    seen = list(spread(figures_of, [*jobs, *((values, 0) for values in sets)]))
    values, others, varied = seen[0], seen[1 : SEEDS + 1], seen[SEEDS + 1 :]
    found = {name: _figure(name, values, varied, others) for name in values}
    probe = _judged(experiment, found)
    missed = probe.missed
    schedule = planned(experiment)
    sent = [float(tokens.mean()) for tokens in (schedule.input_tokens, schedule.output_tokens)]
    shown = ReplayForecast(
        requests=asked_requests(experiment),
        concurrency=experiment.concurrency,
        rate_qps_per_node=experiment.rate_qps,
        input_tokens=sent[0],
        output_tokens=sent[1],
        figures=found,
        seeds=SEEDS,
        other_seeds=_by_chance(values, others),
        draws=len(sets),
        constants_sampled=tuple(sets[0]) if sets else (),
        kept_probability=_kept(experiment, varied),
        ln_throughput=tuple(map(_ln_throughput, varied)),
        ln_throughput_of_seeds=tuple(map(_ln_throughput, others)),
    )
    return replace(
        base(experiment, replay=shown, probe=probe),
        passed=not missed,
        exit_code=summary.EXIT_SLO_MISSED if missed else summary.EXIT_OK,
        reason=f"p90 {' and '.join(missed)} over the bound" if missed else "",
    )


def _figures(
    experiment: Experiment, play: Play, job: tuple[Mapping[str, float], int]
) -> dict[str, float | None]:
    """All figures under other constants, by name, or with another draw of what is left to chance."""
    constants, number = job
    schedule = planned(experiment, number)
    played = play(replaced(experiment, constants), schedule, experiment.seed + number)
    latencies = dict(zip(LATENCIES, latencies_ms(schedule, played), strict=True))
    found = {
        f"{name}.{place}": quantile(values, share)
        for name, values in latencies.items()
        for place, share in QUANTILES.items()
    }
    took_s = float(played.last_s.max())
    outputs, inputs = int(schedule.output_tokens.sum()), int(schedule.input_tokens.sum())
    rates = {
        "requests_per_s": len(schedule),
        THROUGHPUT: outputs,
        "total_tokens_per_s": inputs + outputs,
    }
    return {**found, **{name: count / took_s for name, count in rates.items()}, "makespan_s": took_s}


def latencies_ms(schedule: ArrivalSchedule, played: Replayed) -> tuple[Floats, Floats, Floats, Floats]:
    """TTFT, TPOT, late gap and E2E of every request, in ms, by `analysis.metrics`."""
    outputs = schedule.output_tokens.astype(np.float64)
    return (
        ttft_ms(played.sent_s, played.first_s),
        tpot_ms(played.first_s, played.last_s, outputs),
        played.gap_s * 1e3,
        (played.last_s - played.sent_s) * 1e3,
    )


def rows(schedule: ArrivalSchedule, played: Replayed) -> pa.Table:
    """A row per request in order of sending; null where a figure does not apply. Times are in seconds."""
    ttft, tpot, gap, e2e = (values / 1e3 for values in latencies_ms(schedule, played))
    known = [pa.array(values, pa.float64(), from_pandas=True) for values in (ttft, tpot, gap, e2e)]
    names = ("ttft_s", "tpot_s", "itl_s", "e2e_s")
    return pa.table(
        {
            "request": schedule.seq,
            "due_s": played.sent_s,
            "input_tokens": schedule.input_tokens,
            "output_tokens": schedule.output_tokens,
            **dict(zip(names, known, strict=True)),
            "replica": played.replica,
        }
    )


def ratio(cell: PredictionVerdict, first: PredictionVerdict) -> RatioFigures:
    """Output tok/s over that of the first cell, with a 95 % interval, draw by draw and seed by seed.

    A constant or an arrival that both have errs alike in both. Where their numbers of draws differ, every
    pair counts.
    """
    ours, theirs = cell.replay, first.replay
    assert ours is not None and theirs is not None
    value, of = (math.log(one.figures[THROUGHPUT].value or math.nan) for one in (ours, theirs))
    moved = _differences(ours.ln_throughput, theirs.ln_throughput) - (value - of)
    chance = _differences(ours.ln_throughput_of_seeds, theirs.ln_throughput_of_seeds) - (value - of)
    return RatioFigures(math.exp(value - of), *(math.exp(value - of + away) for away in _away(moved, chance)))


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> Floats:
    """What two cells differ by in each draw; 0 where neither drew anything."""
    one, other = (np.array(each or [0.0]) for each in (ours, theirs))
    pairs: Floats = one - other if len(one) == len(other) else np.subtract.outer(one, other).ravel()
    return pairs


def _ln_throughput(figures: Figures) -> float:
    return math.log(figures[THROUGHPUT] or math.nan)


def _figure(
    name: str, values: Figures, varied: Sequence[Figures], others: Sequence[Figures]
) -> FigureWithEnds:
    return FigureWithEnds(values[name], *_ends(name, values, varied, others))


def _ends(
    name: str, values: Figures, varied: Sequence[Figures], others: Sequence[Figures]
) -> tuple[float | None, float | None]:
    """The 95 % interval of one figure in ln: of the constants' draws, and of a further seed (Student's t)."""
    value = values[name]
    if not value:
        return value, value
    moved, chance = (
        np.array([math.log(one / value) for each in all_of if (one := each[name])])
        for all_of in (varied, others)
    )
    low, high = _away(moved, chance)
    return value * math.exp(low), value * math.exp(high)


def _away(moved: Floats, chance: Floats) -> tuple[float, float]:
    """How far in ln the ends of a 95 % interval lie from a value that draws of the constants have `moved`.

    `chance` is how far other seeds lie; that of one more is Student's t.
    """
    centre = float(chance.mean()) if len(chance) else 0.0
    around = (
        STUDENT_T * float(chance.std(ddof=1)) * math.sqrt(1 + 1 / len(chance)) if len(chance) > 1 else 0.0
    )
    low, high = (
        side
        * math.hypot(max(0.0, side * drawn_quantile(moved.tolist(), share)), max(0.0, side * centre + around))
        for side, share in ((-1, 0.025), (1, 0.975))
    )
    return low, high


def _by_chance(values: Figures, others: Sequence[Figures]) -> dict[str, tuple[float | None, float | None]]:
    """The ends of every figure under a further seed; empty where chance moves nothing."""
    same = all(
        math.isclose(one[name] or 0.0, value or 0.0, rel_tol=SAME)
        for one in others
        for name, value in values.items()
    )
    return {} if same else {name: _ends(name, values, [], others) for name in values}


def _judged(experiment: Experiment, found: Mapping[str, FigureWithEnds]) -> ProbeFigures:
    """Each p90 against its bound, in the form of a probe."""
    rate_qps = experiment.rate_qps or (found["requests_per_s"].value or 0.0) / experiment.cluster.nodes
    slo = experiment.slo
    return ProbeFigures(
        loop="closed" if experiment.concurrency else "open",
        concurrency=experiment.concurrency,
        rate_qps_per_node=rate_qps,
        ttft=_p90(found["ttft_ms.p90"], slo.ttft_p90_ms),
        tpot=_p90(found["tpot_ms.p90"], slo.tpot_p90_ms),
    )


def _p90(figure: FigureWithEnds, bound_ms: float) -> P90Figures:
    value, low = figure.value, figure.low
    return P90Figures(
        p90_ms=value,
        interval_ms=None if value is None or low is None else (low, figure.high),
        bound_ms=bound_ms,
        passed=None if value is None else value <= bound_ms,
    )


def _kept(experiment: Experiment, varied: Sequence[Figures]) -> float | None:
    """In which share of the draws both bounds are kept."""
    if not varied:
        return None
    bounds = {f"{limit}_ms.p90": getattr(experiment.slo, f"{limit}_p90_ms") for limit in LIMITS}
    kept = [all((one[name] or 0.0) <= bound for name, bound in bounds.items()) for one in varied]
    return sum(kept) / len(kept)
