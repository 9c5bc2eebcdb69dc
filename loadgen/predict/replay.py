"""Replay of a number of requests by the engine model: latencies, throughput, their intervals.

Knows the requests and the figures; the engine model is handed in. The service begins empty and all requests
count, as in other tools' benchmarks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from analysis.results import summary
from analysis.results.summary import Tree
from analysis.rows.metrics import tpot_ms, ttft_ms
from analysis.stats.quantiles import quantile
from conf import ConfigError, Experiment
from conf.constants import replaced
from conf.specs.bounds import LIMITS, column
from loadgen.predict.answer import base
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import DRAWS, ParallelMap, interval_end
from loadgen.traffic.processes import Floats
from loadgen.traffic.schedule import ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from loadgen.traffic.vllm_bench_arrivals import MOST_SEED

SEEDS = 16
"""Other seeds of the same replay, to see how far chance moves the answer (our choice)."""
STUDENT_T = 2.1314
"""97.5 % quantile of Student's t with SEEDS - 1 degrees of freedom."""
SAME = 1e-9
"""Relative difference below which two figures differ by rounding alone."""
MOST_REQUESTS = 50_000
"""A longer replay is a steady state, which rate_qps without requests answers at less cost (our choice)."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
LATENCIES = ("ttft_ms", "tpot_ms", "gap_ms", "e2e_ms")
THROUGHPUT = "output_tokens_per_s"
Figures = Mapping[str, float | None]
"""Figures by name; None where one does not apply."""


class Replayed(NamedTuple):
    """Times of every request in order of sending, in seconds from the start of the load.

    `sent_s` is the due time, in a closed loop the end of an earlier request. `gap_s` is the 99 % quantile of
    the gaps between its tokens, nan if there are none or they are unknown.
    """

    sent_s: Floats
    first_s: Floats
    last_s: Floats
    gap_s: Floats
    replica: NDArray[np.int64]


Play = Callable[[Experiment, ArrivalSchedule, int], Replayed]
"""(experiment, arrivals, seed of the engine's noise); raises ValueError for what can never be served."""


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for what a replay does not support, and for what only a replay supports."""
    workload, kind, seed = experiment.workload, experiment.workload.arrivals.kind, experiment.seed
    if not experiment.is_replay:
        if kind == "vllm_bench":
            raise ConfigError(
                "workload.arrivals.kind=vllm_bench sends a number of requests at a rate; add "
                "rate_qps=... requests=N"
            )
        return
    if workload.has_sessions:
        raise ConfigError(
            "a replay begins with an empty service, which has no sessions yet; leave workload.sessions and "
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
    return experiment.closed_requests if experiment.requests is None else experiment.requests


def planned(experiment: Experiment, number: int = 0) -> ArrivalSchedule:
    """The requests; every `number` above 0 draws anew what the seed leaves to chance."""
    traffic, seed, count = Traffic(experiment.workload), experiment.seed, asked_requests(experiment)
    if held := experiment.concurrency:
        return traffic.closed(count, held, 0, dwell=number, first_seq=0, seed=seed)
    assert experiment.rate_qps, "a replay has a rate or a concurrency"
    rate_qps = experiment.rate_qps * experiment.cluster.nodes
    return traffic.first(count, rate_qps, dwell=number, seed=seed)


def tree(experiment: Experiment, play: Play, parallel_map: ParallelMap = map, draws: int = DRAWS) -> Tree:
    """The figures with their 95 % intervals, and each p90 against its bound.

    An interval holds the constants' uncertainty, on the same arrivals. If chance drew arrivals or lengths,
    the scatter of other seeds is part of it.
    """
    figures_of = partial(_figures, experiment, play)
    sets = drawn(experiment, draws)
    jobs: list[tuple[Mapping[str, float], int]] = [({}, number) for number in range(SEEDS + 1)]
    seen = list(parallel_map(figures_of, [*jobs, *((values, 0) for values in sets)]))
    values, others, varied = seen[0], seen[1 : SEEDS + 1], seen[SEEDS + 1 :]
    found = {name: _figure(name, values, varied, others) for name in values}
    probe = _judged(experiment, found)
    missed = [limit.upper() for limit in LIMITS if probe[limit]["passed"] is False]
    schedule = planned(experiment)
    sent = [float(tokens.mean()) for tokens in (schedule.input_tokens, schedule.output_tokens)]
    return {
        **base(experiment),
        "replay": {
            "requests": asked_requests(experiment),
            "concurrency": experiment.concurrency,
            "rate_qps_per_node": experiment.rate_qps,
            "input_tokens": sent[0],
            "output_tokens": sent[1],
            "figures": found,
            "seeds": SEEDS,
            "other_seeds": _by_chance(values, others),
            "draws": len(sets),
            "constants_sampled": list(sets[0]) if sets else [],
            "kept_probability": _kept(experiment, varied),
            "ln_throughput": [_ln_throughput(one) for one in varied],
            "ln_throughput_of_seeds": [_ln_throughput(one) for one in others],
        },
        "probe": probe,
        "valid": True,
        "passed": not missed,
        "exit_code": summary.EXIT_SLO_MISSED if missed else summary.EXIT_OK,
        "reason": f"p90 {' and '.join(missed)} over the bound" if missed else "",
    }


def _figures(
    experiment: Experiment, play: Play, job: tuple[Mapping[str, float], int]
) -> dict[str, float | None]:
    """All figures by name, under other constants or with another draw of what is left to chance."""
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
    """TTFT, TPOT, late gap and E2E of every request in ms, by `analysis.rows.metrics`."""
    outputs = schedule.output_tokens.astype(np.float64)
    return (
        ttft_ms(played.sent_s, played.first_s),
        tpot_ms(played.first_s, played.last_s, outputs),
        played.gap_s * 1e3,
        (played.last_s - played.sent_s) * 1e3,
    )


def rows(schedule: ArrivalSchedule, played: Replayed) -> pa.Table:
    """A row per request in order of sending, times in seconds; null if a figure does not apply."""
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


def ratio(cell: Tree, first: Tree) -> dict[str, float]:
    """Output tok/s over that of the first cell, with a 95 % interval, draw by draw and seed by seed.

    A constant or an arrival that both cells have errs alike in both. If the numbers of draws differ, all
    pairs count.
    """
    ours, theirs = cell["replay"], first["replay"]
    value, of = (math.log(one["figures"][THROUGHPUT]["value"]) for one in (ours, theirs))
    moved, chance = (
        _differences(ours[name], theirs[name]) - (value - of)
        for name in ("ln_throughput", "ln_throughput_of_seeds")
    )
    ends = zip(("low", "high"), _away(moved, chance), strict=True)
    return {"value": math.exp(value - of), **{end: math.exp(value - of + away) for end, away in ends}}


def _differences(ours: Sequence[float], theirs: Sequence[float]) -> Floats:
    one, other = (np.array(each or [0.0]) for each in (ours, theirs))
    pairs: Floats = one - other if len(one) == len(other) else np.subtract.outer(one, other).ravel()
    return pairs


def _ln_throughput(figures: Figures) -> float:
    return math.log(figures[THROUGHPUT] or math.nan)


def _figure(name: str, values: Figures, varied: Sequence[Figures], others: Sequence[Figures]) -> Tree:
    low, high = _ends(name, values, varied, others)
    return {"value": values[name], "low": low, "high": high}


def _ends(
    name: str, values: Figures, varied: Sequence[Figures], others: Sequence[Figures]
) -> tuple[float | None, float | None]:
    """The 95 % interval of one figure: from the constants' draws, and from one more seed (Student's t)."""
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


def _by_chance(values: Figures, others: Sequence[Figures]) -> dict[str, Any]:
    """The 95 % interval of a further seed for every figure; empty if chance moves nothing."""
    same = all(
        math.isclose(one[name] or 0.0, value or 0.0, rel_tol=SAME)
        for one in others
        for name, value in values.items()
    )
    return {} if same else {name: _ends(name, values, [], others) for name in values}


def _judged(experiment: Experiment, found: Mapping[str, Tree]) -> Tree:
    nodes = experiment.cluster.nodes
    out: dict[str, Any] = {
        "loop": "closed" if experiment.concurrency else "open",
        "concurrency": experiment.concurrency,
        "rate_qps_per_node": experiment.rate_qps or (found["requests_per_s"]["value"] or 0.0) / nodes,
    }
    for limit in LIMITS:
        p90 = found[f"{limit}_ms.p90"]
        bound = getattr(experiment.slo, column(limit))
        known = p90["value"] is not None
        out[limit] = {
            "p90_ms": p90["value"],
            "interval_ms": (p90["low"], p90["high"]) if known else None,
            "bound_ms": bound,
            "passed": p90["value"] <= bound if known else None,
        }
    return out


def _kept(experiment: Experiment, varied: Sequence[Figures]) -> float | None:
    if not varied:
        return None
    bounds = {f"{bound.limit}_ms.p90": bound.ms for bound in experiment.slo.bounds}
    kept = [all((one[name] or 0.0) <= bound for name, bound in bounds.items()) for one in varied]
    return sum(kept) / len(kept)
