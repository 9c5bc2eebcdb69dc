"""The answer of the engine model: a capacity, one rate, or a replay of requests; and grids of them."""

from collections.abc import Iterator, Sequence

from analysis.results.asked import AskedExperiment
from analysis.results.predictions import (
    GridCell,
    GridVerdict,
    PredictionVerdict,
    RateDraws,
    RateForecast,
    ReplayForecast,
)
from analysis.stats.estimate import Estimate, interval, middle, number, span
from analysis.views import capacity, constants, probe
from analysis.views.shown import Answer, Fact, Table, table_lines
from analysis.views.verdict import answer as answered
from analysis.views.verdict import lengths
from conf.specs.bounds import LIMITS, Limit, label, short

TERMS_SHOWN = 4
SENSITIVITIES_IN_A_TABLE = 3
NOT_APPLICABLE = "n/a"
LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "gap_ms": "p99 gap of a request", "e2e_ms": "E2E"}
PLACES = ("p50", "p90", "p99")
RATES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
}
FORECAST_HEADS = (
    *("QPS/node", "95 % interval", "limit", "TTFT p90 ms", "TPOT p90 ms", "hit %", "in tok/s"),
    *("out tok/s", "in flight", "over the first"),
)
REPLAY_HEADS = (
    *("TTFT p50 ms", "TTFT p90 ms", "[95 %]", "TPOT p90 ms", "[95 %]", "p99 gap p90 ms", "out tok/s"),
    *("[95 %]", "makespan s", "over", "tok/s over the first"),
)


def answer(verdict: PredictionVerdict) -> Answer:
    """The answer of a capacity, of one rate or of a replay, with what its constants rest on."""
    facts: list[Fact] = []
    if verdict.capacity and verdict.valid:
        facts += capacity.facts(verdict, verdict.capacity)
    if verdict.probe:
        facts += probe.facts(verdict.probe)
    if verdict.forecast:
        facts += _forecast(verdict, verdict.forecast)
    if verdict.replay:
        facts += _replay(verdict.replay, verdict.asked)
    if verdict.forecast or verdict.replay:
        facts += constants.facts(verdict)
    tables = [_quantiles(verdict.replay)] if verdict.replay else []
    if verdict.sensitivity:
        tables.append(constants.sensitivity(verdict.sensitivity))
    return answered(verdict, headline(verdict), facts, tables)


def headline(verdict: PredictionVerdict) -> str:
    """The answer in one line."""
    if verdict.replay and verdict.probe:
        sent = _sent(verdict.replay)
        said = f"{sent}: {probe.outcome(verdict.probe)}{_kept_by_draws(verdict.replay)}"
    elif verdict.probe:
        said = f"{probe.headline(verdict.probe)}{_kept(verdict)}"
    elif verdict.no_rate:
        said = "no rate keeps the bounds"
    elif verdict.capacity and verdict.capacity.at_end:
        why = "the bounds are kept even there (search.highest_qps)"
        said = f"{span(verdict.capacity.qps_per_node)} QPS per node: {why}{_kept(verdict)}"
    else:
        return capacity.headline(verdict) + (lengths(verdict) if verdict.capacity else "")
    return f"{said}{lengths(verdict)}"


def _kept(verdict: PredictionVerdict) -> str:
    """The share of draws that keep the bounds at the rate of the answer; empty where that is unknown."""
    drawn = verdict.forecast.of_rate if verdict.forecast else None
    if drawn is None or drawn.kept_probability is None:
        return ""
    return f"; the bounds are kept in {_kept_share(drawn)} of the constants"


def _kept_share(drawn: RateDraws) -> str:
    return f"{100 * (drawn.kept_probability or 0.0):.0f} % of {drawn.draws} draws"


def _forecast(verdict: PredictionVerdict, forecast: RateForecast) -> Iterator[Fact]:
    """The node at the rate of the answer."""
    latencies = ", ".join(f"{label(limit)} {_ms(ms)}" for limit, ms in forecast.limits_ms.items())
    at = f"at {number(forecast.rate_qps_per_node)} QPS per node{_rounded(verdict, forecast)}"
    yield at, latencies if forecast.requests else "unknown: no request came in the simulated time"
    yield from _service(verdict.asked, forecast.rate_qps_per_node)
    used = f"KV cache {_percent(forecast.kv_used)} in use, MFU {_percent(forecast.mfu)}"
    yield "per node", f"{_throughput(forecast)}, {used}"
    if forecast.prefill_busy is not None:
        # The ratio of a split node should have more of the side that is busier.
        sides = f"prefill engines {_percent(forecast.prefill_busy)}, decode engines {_percent(forecast.busy)}"
        yield "share of the time that is computed", sides
    terms = sorted(forecast.step_terms.items(), key=lambda term: -(term[1] or 0.0))[:TERMS_SHOWN]
    if terms:
        yield "step time", ", ".join(f"{name} {_percent(share)}" for name, share in terms)
    yield from _sessions(forecast, verdict.asked)
    yield from _evidence(forecast)


def _throughput(forecast: RateForecast) -> str:
    """Tokens per second and requests in flight."""
    n_in, hit = forecast.input_tokens_per_s_per_node, forecast.cached_share_of_input
    n_out, images = forecast.output_tokens_per_s_per_node, forecast.image_tokens_per_s_per_node
    if n_in is None or n_out is None or hit is None:
        return "tokens and requests in flight unknown"
    # A throughput with image tokens compares with none without.
    apart = f" (of these {images:.0f} image tokens, {n_in - images:.0f} text)" if images else ""
    in_flight = "requests in flight unknown (overload: the queue grows)"
    if forecast.in_flight_per_node is not None:
        in_flight = f"{forecast.in_flight_per_node:.1f} requests in flight"
    return f"{n_in:.0f} input{apart} ({100 * hit:.0f} % cached) and {n_out:.0f} output tok/s, {in_flight}"


def _rounded(verdict: PredictionVerdict, forecast: RateForecast) -> str:
    """A note where the rate of the headline is this rate in fewer digits; this rate keeps its bounds."""
    known, rate = verdict.capacity, forecast.rate_qps_per_node
    same = not known or known.at_end or middle(known.qps_per_node) == number(rate)
    return "" if same else " (rounded in the first line)"


def _service(asked: AskedExperiment, rate_qps: float) -> list[Fact]:
    if asked.nodes == 1:
        return []
    own = asked.routing == "per_node"
    alone = ", each with arrivals of its own: one was simulated for all" if own else ""
    return [("service", f"{rate_qps * asked.nodes:.6g} QPS of {asked.nodes} nodes{alone}")]


def _sessions(forecast: RateForecast, asked: AskedExperiment) -> list[Fact]:
    seen = forecast.sessions
    if seen is None:
        return []
    met, most, blocked = seen.replicas_per_session, seen.reusable_share_of_input, seen.blocked_share
    waits = f"; {100 * blocked:.1f} % of the turns came before the answer before had ended" if blocked else ""
    share = forecast.cached_share_of_input
    hit = f"hit rate {'unknown' if share is None else f'{100 * share:.1f} %'}"
    return [
        (
            f"sessions by {asked.routing}",
            f"{hit} of the prompt tokens{'' if most is None else f' (at most {100 * most:.1f} %)'},"
            f" {'unknown' if met is None else f'{met:.2f}'} replicas per session,"
            f" busiest replica {number(seen.max_over_mean_share, 3)} of the mean{waits}",
        ),
        (
            "sessions in memory",
            f"{seen.sessions_per_node:.0f} sessions per node at a time want {seen.sessions_over_kv:.2f}"
            f" of its KV cache; {seen.simulated_nodes} of {asked.nodes} nodes simulated, after"
            f" {seen.fill_s:.0f} s that filled their caches",
        ),
    ]


def _evidence(forecast: RateForecast) -> Iterator[Fact]:
    hours, noise = forecast.simulated_node_s / 3600, ""
    if forecast.noise:
        known = forecast.noise_pct is not None
        noise = f"; Monte Carlo noise {f'{forecast.noise_pct:.1f} % (95 %)' if known else 'unknown'}"
    yield "evidence", f"{forecast.requests} requests in {hours:.3g} virtual hours of a node{noise}"
    drawn = forecast.of_capacity or forecast.of_rate
    if forecast.of_rate and forecast.of_rate.kept_probability is not None:
        count, endless = len(forecast.of_rate.constants_sampled), forecast.of_rate.overloaded_draws
        more = f"; the queue grows without end in {endless} of the draws" if endless else ""
        yield (
            "the bounds are kept",
            f"in {_kept_share(forecast.of_rate)} of {count} uncertain constants{more}",
        )
    elif drawn and drawn.draws:
        open_draws = forecast.of_capacity.open_draws if forecast.of_capacity else 0
        beyond = f", {open_draws} of them beyond an end of the search" if open_draws else ""
        yield "interval", f"{drawn.draws} draws of {len(drawn.constants_sampled)} uncertain constants{beyond}"
    elif drawn and not drawn.constants_sampled:
        yield "interval", "Monte Carlo noise alone; no constant of this model and hardware has an interval"


def _sent(replay: ReplayForecast) -> str:
    if replay.concurrency:
        return f"{replay.requests} requests, {replay.concurrency} in flight"
    return f"{replay.requests} requests at {number(replay.rate_qps_per_node)} QPS per node"


def _kept_by_draws(replay: ReplayForecast) -> str:
    if replay.kept_probability is None:
        return ""
    share = f"{100 * replay.kept_probability:.0f} % of {replay.draws} draws"
    return f"; the bounds are kept in {share} of the constants"


def _quantiles(replay: ReplayForecast) -> Table:
    rows = tuple(
        (words, *(_figure(replay.figures[f"{name}.{place}"]) for place in PLACES))
        for name, words in LATENCIES.items()
    )
    return Table("", ("ms [95 %]", *PLACES), rows)


def _replay(replay: ReplayForecast, asked: AskedExperiment) -> Iterator[Fact]:
    """Throughput and makespan, and what the intervals hold."""
    figures = replay.figures
    whole = f" of all {asked.nodes} nodes" if asked.nodes > 1 else ""
    rates = ", ".join(f"{_figure(figures[name])} {words}" for name, words in RATES.items())
    yield f"throughput{whole}", rates
    yield "makespan", f"{_figure(figures['makespan_s'])} s"
    if asked.replicas > 1:
        yield "replicas", f"{asked.replicas} replicas behind one balancer, routing {asked.routing}"
    tokens = f"{replay.input_tokens:.0f} and {replay.output_tokens:.4g} tokens in the mean"
    yield (
        "evidence",
        f"{replay.requests} requests of {tokens}, on a service that began empty, all of them counted",
    )
    chance = "arrivals and lengths are given, so that no other seed is part of the intervals"
    if ends := replay.other_seeds:
        there = _ends(ends["ttft_ms.p90"])
        chance = (
            f"with another seed p90 TTFT lies in {there} ms (95 %, {replay.seeds} were tried), which is part"
            " of the intervals"
        )
    yield "chance", chance
    drawn = f"{replay.draws} draws of {len(replay.constants_sampled)} uncertain constants"
    yield "interval", drawn if replay.draws else "no constant is uncertain"


def grid_text(grid: GridVerdict) -> str:
    """A grid as text: a line per cell, and what the constants rest on."""
    lines = table_lines(grid_table(grid))
    return "\n".join([*lines, *constants.grid_lines(grid.cells)])


def grid_table(grid: GridVerdict) -> Table:
    """A row per cell, with its figures or the reason why it has none."""
    are_replays = any(cell.prediction and cell.prediction.replay for cell in grid.cells)
    heads, row = (REPLAY_HEADS, _replay_row) if are_replays else (FORECAST_HEADS, _forecast_row)
    rows, notes = [], []
    for cell in grid.cells:
        at = [str(cell.at[axis]) for axis in grid.axes]
        figures = row(cell) or [*[""] * (len(heads) - 1), cell.answer.reason]
        rows.append((*at, *figures))
        if first := _most(cell):
            notes.append(f"{', '.join(at)}: measure first: {first}")
    words = frozenset({len(grid.axes) + len(heads) - 1})
    return Table("", (*grid.axes, *heads), tuple(rows), note="; ".join(notes), words=words)


def _most(cell: GridCell) -> str:
    known = (cell.prediction and cell.prediction.sensitivity) or ()
    parts = (f"{row.path} ({100 * row.share:.0f} % of variance)" for row in known[:SENSITIVITIES_IN_A_TABLE])
    return ", ".join(parts)


def _forecast_row(cell: GridCell) -> list[str] | None:
    one = cell.prediction
    if one is None or one.forecast is None or not (one.capacity or one.probe):
        return None
    forecast = one.forecast
    return [
        *_first_columns(one, forecast),
        *(_whole_ms(forecast, limit) for limit in LIMITS),
        _or_unknown(forecast.cached_share_of_input, 1, 100.0),
        _or_unknown(forecast.input_tokens_per_s_per_node, 0),
        _or_unknown(forecast.output_tokens_per_s_per_node, 0),
        _or_unknown(forecast.in_flight_per_node, 1),
        span(cell.ratio) if cell.ratio else "",
    ]


def _first_columns(one: PredictionVerdict, forecast: RateForecast) -> tuple[str, str, str]:
    """The capacity; or the rate, in how many draws its bounds are kept, and which bound is missed."""
    if one.capacity:
        q, limit = one.capacity.qps_per_node, short(one.capacity.binding)
        return (span(q), "", limit) if q.is_bound else (middle(q), interval(q), limit)
    assert one.probe
    share = forecast.kept_probability
    chance = "unknown" if share is None else f"kept in {100 * share:.0f} %"
    return number(one.probe.rate_qps_per_node), chance, _over(one.probe.missed)


def _replay_row(cell: GridCell) -> list[str] | None:
    one = cell.prediction
    if one is None or one.replay is None or one.probe is None:
        return None
    figures = one.replay.figures

    def both(name: str) -> tuple[str, str]:
        return _middle(figures[name]), _ends(figures[name])

    return [
        _middle(figures["ttft_ms.p50"]),
        *both("ttft_ms.p90"),
        *both("tpot_ms.p90"),
        _middle(figures["gap_ms.p90"]),
        *both("output_tokens_per_s"),
        _middle(figures["makespan_s"]),
        _over(one.probe.missed),
        span(cell.ratio) if cell.ratio else "",
    ]


def _over(missed: Sequence[Limit]) -> str:
    """The limits over their bound, as a cell of text."""
    return ", ".join(map(short, missed)) or "-"


def _figure(figure: Estimate | None) -> str:
    return span(figure) if figure else NOT_APPLICABLE


def _middle(figure: Estimate | None) -> str:
    return middle(figure) if figure else NOT_APPLICABLE


def _ends(figure: Estimate | None) -> str:
    return interval(figure) if figure else ""


def _whole_ms(forecast: RateForecast, limit: Limit) -> str:
    ms = forecast.limits_ms.get(limit)
    return NOT_APPLICABLE if ms is None else f"{ms:.0f}"


def _or_unknown(value: float | None, digits: int, scale: float = 1.0) -> str:
    return "unknown" if value is None else f"{scale * value:.{digits}f}"


def _percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _ms(value: float | None) -> str:
    return "does not apply" if value is None else f"{value:.1f} ms"
