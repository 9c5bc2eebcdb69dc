"""The answer of the engine model: a capacity, one rate, a replay, or a grid; and its constants."""

from collections.abc import Iterator, Sequence

from analysis.results import predictions
from analysis.results.experiment_facts import ConstantsBasis, ExperimentFacts
from analysis.results.predictions import GridCell, GridVerdict, PredictionVerdict, RateForecast
from analysis.stats.estimate import UNKNOWN, Estimate, fixed, interval, middle, number, span
from analysis.views import rates
from analysis.views.shown import Fact, Table, table_lines
from conf.specs.bounds import LIMITS, Limit, label, short

TERMS_SHOWN = 4
SENSITIVITIES_IN_A_TABLE = 3
NOT_APPLICABLE = "n/a"
FORECAST_HEADS = (
    *("QPS/node", "95 % interval", "limit", "TTFT p90 ms", "TPOT p90 ms", "hit %", "in tok/s"),
    *("out tok/s", "in flight", "over the first"),
)
REPLAYED = {
    "ttft_ms.p50": "TTFT p50 ms",
    "ttft_ms.p90": "TTFT p90 ms",
    "tpot_ms.p90": "TPOT p90 ms",
    "gap_ms.p90": "p99 gap p90 ms",
    "output_tokens_per_s": "out tok/s",
    "makespan_s": "makespan s",
}
"""Figures of a replay in a grid, with their heads."""
REPLAY_HEADS = *REPLAYED.values(), "over", "tok/s over the first"
NAMED, LEAST_SHARE = 3, 0.03
"""Most assumed constants that are named, and the least part of the variance that each makes (our choice)."""
MOST_ROWS = 12
READING = (
    "QPS with one constant at each end of its interval; share of variance with fitted constants moved jointly"
)


def headline(verdict: PredictionVerdict) -> str:
    """The answer in one line, without the lengths of its requests."""
    replay, forecast = verdict.replay, verdict.forecast
    kept = forecast.of_rate if forecast and not replay else replay
    drawn = ""
    if kept and kept.kept_probability is not None:
        share = f"{100 * kept.kept_probability:.0f} % of {kept.draws} draws"
        drawn = f"; the bounds are kept in {share} of the constants"
    if replay and verdict.probe:
        sent = f"{replay.concurrency} in flight"
        if not replay.concurrency:
            sent = f"at {number(replay.rate_qps_per_node)} QPS per node"
        comma = ", " if replay.concurrency else " "
        return f"{replay.requests} requests{comma}{sent}: {rates.probe_outcome(verdict.probe)}{drawn}"
    if verdict.probe:
        return f"{rates.probe_headline(verdict.probe)}{drawn}"
    if verdict.no_rate:
        return "no rate keeps the bounds"
    if verdict.capacity and verdict.capacity.at_end:
        why = "the bounds are kept even there (search.highest_qps)"
        return f"{span(verdict.capacity.qps_per_node)} QPS per node: {why}{drawn}"
    return rates.capacity_headline(verdict)


def facts(verdict: PredictionVerdict) -> Iterator[Fact]:
    """The node at the rate of the answer, the replay, and what the constants rest on."""
    if verdict.forecast:
        yield from _forecast_facts(verdict, verdict.forecast)
    if verdict.replay:
        yield from _replay_facts(verdict.replay, verdict.experiment)
    if verdict.forecast or verdict.replay:
        yield from constants_facts(verdict)


def tables(verdict: PredictionVerdict) -> list[Table]:
    """The quantiles of a replay, and the constants in the order of what they contribute to the variance."""
    out = []
    if replay := verdict.replay:
        rows = tuple(
            (words, *(_figure(replay.figures[f"{name}.{place}"]) for place in predictions.PLACES))
            for name, words in predictions.LATENCIES.items()
        )
        out.append(Table("", ("ms [95 %]", *predictions.PLACES), rows))
    if verdict.sensitivity:
        out.append(_sensitivity(verdict.sensitivity))
    return out


def _forecast_facts(verdict: PredictionVerdict, forecast: RateForecast) -> Iterator[Fact]:
    experiment, rate = verdict.experiment, forecast.rate_qps_per_node
    limits = forecast.limits_ms.items()
    known = (f"{label(limit)} {'does not apply' if ms is None else f'{ms:.1f} ms'}" for limit, ms in limits)
    latencies = ", ".join(known) if forecast.requests else "unknown: no request came in the simulated time"
    yield f"at {number(rate)} QPS per node", latencies
    if experiment.nodes > 1:
        own = experiment.routing == "per_node"
        alone = ", each with arrivals of its own: one was simulated for all" if own else ""
        yield "service", f"{rate * experiment.nodes:.6g} QPS of {experiment.nodes} nodes{alone}"
    used = f"KV cache {_percent(forecast.kv_used)} in use, MFU {_percent(forecast.mfu)}"
    yield "per node", f"{_throughput(forecast)}, {used}"
    if forecast.prefill_busy is not None:
        # The ratio of a split node should have more of the side that is busier.
        sides = f"prefill engines {_percent(forecast.prefill_busy)}, decode engines {_percent(forecast.busy)}"
        yield "share of the time that is computed", sides
    terms = sorted(forecast.step_terms.items(), key=lambda term: -(term[1] or 0.0))[:TERMS_SHOWN]
    if terms:
        yield "step time", ", ".join(f"{name} {_percent(share)}" for name, share in terms)
    if forecast.sessions:
        yield from _session_facts(forecast.sessions, forecast.cached_share_of_input, experiment)
    yield from _evidence(forecast)


def _throughput(forecast: RateForecast) -> str:
    n_in, hit = forecast.input_tokens_per_s_per_node, forecast.cached_share_of_input
    n_out, images = forecast.output_tokens_per_s_per_node, forecast.image_tokens_per_s_per_node
    if n_in is None or n_out is None or hit is None:
        return "tokens and requests in flight unknown"
    in_flight = "requests in flight unknown (overload: the queue grows)"
    if forecast.in_flight_per_node is not None:
        in_flight = f"{forecast.in_flight_per_node:.1f} requests in flight"
    # A throughput with image tokens compares with none without.
    apart = f" (of these {images:.0f} image tokens)" if images else ""
    return f"{n_in:.0f} input{apart} ({100 * hit:.0f} % cached) and {n_out:.0f} output tok/s, {in_flight}"


def _session_facts(
    forecast: predictions.SessionForecast, share: float | None, experiment: ExperimentFacts
) -> Iterator[Fact]:
    blocked, most = forecast.blocked_share, forecast.reusable_share_of_input
    hit = f"hit rate {'unknown' if share is None else f'{100 * share:.1f} %'} of the prompt tokens"
    hit += "" if most is None else f" (at most {100 * most:.1f} %)"
    waits = f"; {100 * blocked:.1f} % of the turns came before the answer before had ended" if blocked else ""
    busiest = f"busiest replica {number(forecast.max_over_mean_share, 3)} of the mean"
    met_by = f"{fixed(forecast.replicas_per_session, 2)} replicas per session"
    yield f"sessions by {experiment.routing}", f"{hit}, {met_by}, {busiest}{waits}"
    memory = f"{forecast.sessions_per_node:.0f} per node at a time want {forecast.sessions_over_kv:.2f}"
    nodes = f"{forecast.simulated_nodes} of {experiment.nodes} nodes simulated"
    filled = f"after {forecast.fill_s:.0f} s that filled their caches"
    yield "sessions in memory", f"{memory} of its KV cache; {nodes}, {filled}"


def _evidence(forecast: RateForecast) -> Iterator[Fact]:
    hours, noise = forecast.simulated_node_s / 3600, ""
    if forecast.noise:
        known = forecast.noise_pct is not None
        noise = f"; Monte Carlo noise {f'{forecast.noise_pct:.1f} % (95 %)' if known else 'unknown'}"
    yield "evidence", f"{forecast.requests} requests in {hours:.3g} virtual hours of a node{noise}"
    drawn, overload = forecast.of_capacity or forecast.of_rate, forecast.of_rate
    if drawn and not drawn.constants_sampled:
        yield "interval", "Monte Carlo noise alone; no constant of this model and hardware has an interval"
    elif drawn and drawn.draws:
        beyond = forecast.of_capacity.open_draws if forecast.of_capacity else 0
        ends = f", {beyond} of them beyond an end of the search" if beyond else ""
        yield "interval", f"{drawn.draws} draws of {len(drawn.constants_sampled)} uncertain constants{ends}"
    if overload and overload.overloaded_draws:
        yield "overload", f"the queue grows without end in {overload.overloaded_draws} of the draws"


def _replay_facts(replay: predictions.ReplayForecast, experiment: ExperimentFacts) -> Iterator[Fact]:
    """Throughput and makespan, and what the intervals hold."""
    figures = replay.figures
    whole = f" of all {experiment.nodes} nodes" if experiment.nodes > 1 else ""
    rates_of_all = (f"{_figure(figures[name])} {words}" for name, words in predictions.RATES.items())
    yield f"throughput{whole}", ", ".join(rates_of_all)
    yield "makespan", f"{_figure(figures['makespan_s'])} s"
    tokens = f"{replay.input_tokens:.0f} and {replay.output_tokens:.4g} tokens in the mean"
    yield "evidence", f"{replay.requests} requests of {tokens}, on a service that began empty"
    chance = "arrivals and lengths are given, so that no other seed is part of the intervals"
    if ends := replay.other_seeds:
        p90 = ends["ttft_ms.p90"]
        there = f"{interval(p90) if p90 else ''} ms (95 %, {replay.seeds} were tried)"
        chance = f"with another seed p90 TTFT lies in {there}, which is part of the intervals"
    yield "chance", chance
    drawn = f"{replay.draws} draws of {len(replay.constants_sampled)} uncertain constants"
    yield "interval", drawn if replay.draws else "no constant is uncertain"


def constants_facts(prediction: PredictionVerdict) -> Iterator[Fact]:
    """What the constants rest on: measured, fitted and assumed ones."""
    known, calibration = prediction.constants, prediction.calibration
    if known is None:
        return
    if known.transfer:
        yield "KV transfer", known.transfer
    measured = f"this machine, calibrated by {calibration}" if calibration else "nothing of this machine"
    yield "measured", measured
    parts = []
    if known.fitted:
        parts.append(f"{_count(known.fitted)} jointly, to {known.rests_on or 'data not named'}")
    if known.sourced:
        parts.append(f"{_count(known.sourced)} to others' figures, each by its own source")
    yield "fitted", "; ".join(parts) or "nothing"
    yield "assumed", "; ".join([*known.outside, _assumed(known, prediction.sensitivity or ())])


def _assumed(known: ConstantsBasis, sensitivity: Sequence[predictions.SensitivityRow]) -> str:
    """The assumed constants that matter most, where that is known; else how many there are."""
    if not known.assumed:
        return "nothing"
    parts = [row for row in sensitivity if row.path in known.assumed and row.share >= LEAST_SHARE][:NAMED]
    if not sensitivity:
        return f"{_count(known.assumed)} (predict --sensitivity says which matter)"
    if not parts:
        return f"{_count(known.assumed)}, none of which matters much"
    named = ", ".join(f"{row.path.rpartition('.')[2]} {100 * row.share:.0f} %" for row in parts)
    return f"{_count(known.assumed)}; most of the variance: {named}"


def _count(paths: Sequence[str]) -> str:
    return f"{len(paths)} constant{'s' * (len(paths) != 1)}"


def _sensitivity(rows: Sequence[predictions.SensitivityRow]) -> Table:
    def cells(row: predictions.SensitivityRow) -> tuple[str, ...]:
        ends = "exact"
        if row.at_low_qps is not None and row.at_high_qps is not None:
            ends = f"{number(row.at_low_qps, 3)} to {number(row.at_high_qps, 3)}"
        share, unit = f"{100 * row.share:.0f} %", row.constant.unit
        return row.path, number(row.constant.value), f"{row.elasticity:+.2f}", ends, share, unit

    more = f"and {len(rows) - MOST_ROWS} more, which matter less (--json has all)"
    return Table(
        f"what to measure first: {READING}",
        ("constant", "value", "elasticity", "QPS at its ends", "of variance", "unit"),
        tuple(map(cells, rows[:MOST_ROWS])),
        note=more if len(rows) > MOST_ROWS else "",
    )


def grid_text(grid: GridVerdict) -> str:
    """A line per cell, and the constants of the first answer, with a note where other cells differ."""
    lines = table_lines(_grid_table(grid))
    predicted = [cell.prediction for cell in grid.cells if cell.prediction]
    bases = [basis for prediction in predicted if (basis := dict(constants_facts(prediction)))]
    for name, value in bases[0].items() if bases else ():
        kinds = len({basis.get(name) for basis in bases})
        note = f" (first cell; {kinds} kinds of cells, all in --json)" if kinds > 1 else ""
        lines.append(f"{name}: {value}{note}")
    return "\n".join(lines)


def _grid_table(grid: GridVerdict) -> Table:
    """A row per cell, with its figures or the reason why it has none."""
    are_replays = any(cell.prediction and cell.prediction.replay for cell in grid.cells)
    heads, row = (REPLAY_HEADS, _replay_row) if are_replays else (FORECAST_HEADS, _forecast_row)
    rows, notes = [], []
    for cell in grid.cells:
        at = [str(cell.at[axis]) for axis in grid.axes]
        figures = row(cell) or [*[""] * (len(heads) - 1), cell.answer.reason]
        rows.append((*at, *figures))
        known = (cell.prediction and cell.prediction.sensitivity) or ()
        if known:
            first = (f"{row.path} ({100 * row.share:.0f} % of variance)" for row in known)
            notes.append(
                f"{', '.join(at)}: measure first: {', '.join(list(first)[:SENSITIVITIES_IN_A_TABLE])}"
            )
    return Table("", (*grid.axes, *heads), tuple(rows), note="; ".join(notes))


def _forecast_row(cell: GridCell) -> list[str] | None:
    """The capacity; or the rate, in how many draws its bounds are kept, and which bound is missed."""
    prediction = cell.prediction
    if prediction is None or prediction.forecast is None:
        return None
    forecast = prediction.forecast
    if prediction.capacity:
        q, limit = prediction.capacity.qps_per_node, short(prediction.capacity.binding)
        first = (span(q), "", limit) if q.is_bound else (middle(q), interval(q), limit)
    elif prediction.probe:
        share = forecast.kept_probability
        chance = UNKNOWN if share is None else f"kept in {100 * share:.0f} %"
        first = number(prediction.probe.rate_qps_per_node), chance, _over(prediction.probe.missed)
    else:
        return None
    hit = forecast.cached_share_of_input
    return [
        *first,
        *(NOT_APPLICABLE if ms is None else fixed(ms) for ms in map(forecast.limits_ms.get, LIMITS)),
        fixed(hit and 100 * hit, 1),
        fixed(forecast.input_tokens_per_s_per_node),
        fixed(forecast.output_tokens_per_s_per_node),
        fixed(forecast.in_flight_per_node, 1),
        span(cell.ratio) if cell.ratio else "",
    ]


def _replay_row(cell: GridCell) -> list[str] | None:
    prediction = cell.prediction
    if prediction is None or prediction.replay is None or prediction.probe is None:
        return None
    figures = prediction.replay.figures
    ratio = span(cell.ratio) if cell.ratio else ""
    return [*(_figure(figures[name]) for name in REPLAYED), _over(prediction.probe.missed), ratio]


def _over(missed: Sequence[Limit]) -> str:
    return ", ".join(map(short, missed)) or "-"


def _figure(figure: Estimate | None) -> str:
    return span(figure) if figure else NOT_APPLICABLE


def _percent(share: float | None) -> str:
    if share is None:
        return UNKNOWN
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"
