"""What the engine model says, for people: lines of one prediction, a grid as a table or as columns.

Knows the tree of a prediction; computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from analysis.results import constants_text, grid_table
from conf.specs.bounds import LIMITS, column

Tree = Mapping[str, Any]

TERMS_SHOWN = 4
SENSITIVITIES_IN_A_TABLE = 3
COLUMNS = (
    ("QPS/node", 9),
    ("95 % interval", 16),
    ("limit", 6),
    ("TTFT p90 ms", 12),
    ("TPOT p90 ms", 12),
    ("hit %", 6),
    ("in tok/s", 9),
    ("out tok/s", 10),
    ("in flight", 10),
    ("over the first", 20),
)
TEXT, COUNT, FIGURE, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
FOUND = {
    "rate_qps_per_node": FIGURE,
    "steady": TRUTH,
    **{column(limit): FIGURE for limit in LIMITS},
    "input_tokens_per_s_per_node": FIGURE,
    "image_tokens_per_s_per_node": FIGURE,
    "output_tokens_per_s_per_node": FIGURE,
    "cached_share_of_input": FIGURE,
    "in_flight_per_node": FIGURE,
    "kv_used": FIGURE,
    "busy": FIGURE,
    "replicas_per_session": FIGURE,
    "max_over_mean_share": FIGURE,
    "blocked_share": FIGURE,
    "reusable_share_of_input": FIGURE,
    "sessions_per_node": FIGURE,
    "sessions_over_kv": FIGURE,
    "simulated_nodes": COUNT,
    "fill_s": FIGURE,
    "mfu": FIGURE,
    "requests": COUNT,
    "simulated_node_s": FIGURE,
    "noise_pct": FIGURE,
    "varied_nodes": COUNT,
    "varied_node_s": FIGURE,
    "draws": COUNT,
    "open_draws_below": COUNT,
    "open_draws_above": COUNT,
    "kept_probability": FIGURE,
}
TYPES = {
    **dict.fromkeys(("model", "hardware", "layout", "routing", "workload"), TEXT),
    **dict.fromkeys(("nodes", "seed"), COUNT),
    **dict.fromkeys(("ttft_p90_bound_ms", "tpot_p90_bound_ms", "qps_per_node"), FIGURE),
    **{f"qps_per_node_{end}": FIGURE for end in ("low", "high", "certified")},
    "binding": TEXT,
    "binding_probability": FIGURE,
    **dict.fromkeys(("open_above", "open_below"), TRUTH),
    **dict.fromkeys(("ratio_to_first", "ratio_to_first_low", "ratio_to_first_high"), FIGURE),
    **FOUND,
    "exit_code": COUNT,
    "reason": TEXT,
}
"""Columns of the Parquet file behind those of the grid's axes."""


def headline(tree: Tree) -> str:
    """The capacity in one line; what lies beyond an end of the search is unknown."""
    q = tree["capacity"]["qps_per_node"]
    if tree["capacity"]["at_end"]:
        end = f"{q['estimate']:.2f} QPS per node"
        return f"at least {end}: the bounds are kept even there (search.highest_qps){kept(tree)}"
    certified = "unknown" if q["certified"] is None else f"{q['certified']:.2f}"
    return f"{q['estimate']:.2f} QPS per node, 95 % interval {interval(q)}, certified {certified}"


def kept(tree: Tree) -> str:
    """In how many draws both bounds are kept at the rate of the answer; empty where that was not asked."""
    found = tree.get("forecast") or {}
    if found.get("kept_probability") is None:
        return ""
    share = f"{100 * found['kept_probability']:.0f} % of {found['draws']} draws"
    return f"; both are kept in {share} of the constants"


def interval(q: Mapping[str, float | None]) -> str:
    """Its ends in brackets."""
    low, high = ("unknown" if q[end] is None else f"{q[end]:.2f}" for end in ("low", "high"))
    return "(interval unknown)" if low == high == "unknown" else f"[{low}, {high}]"


def lines(tree: Tree) -> list[str]:
    """What a planner should read below the answer."""
    found = tree["forecast"]
    latencies = f"p90 TTFT {_ms(found['ttft_p90_ms'])}, p90 TPOT {_ms(found['tpot_p90_ms'])}"
    terms = sorted(found["step_terms"].items(), key=lambda term: -term[1])[:TERMS_SHOWN]
    return [
        f"  at {found['rate_qps_per_node']:.4g} QPS per node{_rounded(tree)}: {latencies}",
        *_service(tree["asked"], found["rate_qps_per_node"]),
        f"  per node {found['input_tokens_per_s_per_node']:.0f} input{_images(found)}"
        f" ({100 * found['cached_share_of_input']:.0f} % cached) and"
        f" {found['output_tokens_per_s_per_node']:.0f} output tok/s,"
        f" {_in_flight(found)},"
        f" KV cache {_percent(found['kv_used'])} in use,"
        f" MFU {_percent(found['mfu'])}",
        *(
            [f"  step time: {', '.join(f'{name} {_percent(share)}' for name, share in terms)}"]
            if terms
            else []
        ),
        *_sessions(found, tree["asked"]),
        *_evidence(found),
        *(f"  {line}" for line in constants_text.lines(tree)),
        *constants_text.sensitivity_lines(tree.get("sensitivity", [])),
    ]


def spread(figures: Tree) -> str:
    """The 95 % interval of a p90; of a prediction also the part of it that is Monte Carlo noise."""
    low, high = figures["interval_ms"]
    whole = f"95 % [{plain_ms(low)}, {'open' if high is None else plain_ms(high)}]"
    if not figures.get("constants_ms") or not figures.get("noise_ms"):
        return whole
    return f"{whole} (Monte Carlo noise alone [{', '.join(map(plain_ms, figures['noise_ms']))}])"


def plain_ms(value: float | str | None) -> str:
    """A latency in ms; JSON carries an infinite one as text."""
    if value is None:
        return "unknown"
    return str(value) if isinstance(value, str) or value == float("inf") else f"{value:.1f}"


def _rounded(tree: Tree) -> str:
    """Whether the rate above is this one in fewer digits, which is the one that keeps its bounds."""
    capacity, rate = tree.get("capacity"), tree["forecast"]["rate_qps_per_node"]
    same = not capacity or capacity["at_end"] or f"{rate:.2f}" == f"{rate:.4g}"
    return "" if same else " (above rounded to two decimals)"


def _images(found: Tree) -> str:
    """Image tokens apart from text: a throughput with them compares with none without."""
    images = found.get("image_tokens_per_s_per_node") or 0.0
    return (
        f" (of these {images:.0f} image tokens, {found['input_tokens_per_s_per_node'] - images:.0f} text)"
        if images
        else ""
    )


def _in_flight(found: Tree) -> str:
    if found["in_flight_per_node"] is None:
        return "requests in flight unknown (overload: the queue grows)"
    return f"{found['in_flight_per_node']:.1f} requests in flight"


def _service(asked: Tree, rate_qps: float) -> list[str]:
    """What many nodes take together."""
    if asked["nodes"] == 1:
        return []
    own = asked["routing"] == "per_node"
    alone = ", each with arrivals of its own: one was simulated for all" if own else ""
    return [f"  that is {rate_qps * asked['nodes']:.6g} QPS of {asked['nodes']} nodes{alone}"]


def _sessions(found: Tree, asked: Tree) -> list[str]:
    """What the routing made of sessions, and how much memory they want."""
    if found.get("sessions_per_node") is None:
        return []
    met = found["replicas_per_session"]
    most = found["reusable_share_of_input"]
    blocked = found["blocked_share"]
    waits = f"; {100 * blocked:.1f} % of the turns came before the answer before had ended" if blocked else ""
    hit = f"hit rate {100 * found['cached_share_of_input']:.1f} %"
    return [
        f"  sessions by {asked['routing']}: {hit} of the prompt tokens"
        f"{'' if most is None else f' (at most {100 * most:.1f} %)'},"
        f" {'unknown' if met is None else f'{met:.2f}'} replicas per session,"
        f" busiest replica {found['max_over_mean_share']:.2f} of the mean{waits}",
        f"  {found['sessions_per_node']:.0f} sessions per node at a time want {found['sessions_over_kv']:.2f}"
        f" of its KV cache; {found['simulated_nodes']} of {asked['nodes']} nodes simulated, after"
        f" {found['fill_s']:.0f} s that filled their caches",
    ]


def _evidence(found: Tree) -> list[str]:
    hours = found["simulated_node_s"] / 3600
    out = [f"  evidence: {found['requests']} requests in {hours:.3g} virtual hours of a node{_noise(found)}"]
    count = len(found.get("constants_sampled", []))
    if found.get("kept_probability") is not None:
        share = f"{100 * found['kept_probability']:.0f} % of {found['draws']} draws"
        out.append(f"  both bounds are kept in {share} of {count} uncertain constants{_overload(found)}")
    elif found.get("draws"):
        open_draws = found["open_draws_below"] + found["open_draws_above"]
        beyond = f", {open_draws} of them beyond an end of the search" if open_draws else ""
        out.append(f"  interval: {found['draws']} draws of {count} uncertain constants{beyond}")
    elif "constants_sampled" in found and not found["constants_sampled"]:
        out.append(
            "  interval: Monte Carlo noise alone; no constant of this model and hardware has an interval"
        )
    return out


def _overload(found: Tree) -> str:
    """The draws whose p90s have no upper end; empty where there are none."""
    count = found.get("overloaded_draws")
    return f"; the queue grows without end in {count} of the draws" if count else ""


def _noise(found: Tree) -> str:
    if "noise_pct" not in found:
        return ""
    noise = found["noise_pct"]
    return "; Monte Carlo noise unknown" if noise is None else f"; Monte Carlo noise {noise:.1f} % (95 %)"


def table(axes: Sequence[str], cells: Sequence[Tree]) -> str:
    """The grid as text: one line per cell, the reason where there is no number."""
    heads, *shown = grid_table.lines(axes, cells, COLUMNS, _figures)
    out = [heads]
    for line, cell in zip(shown, cells, strict=True):
        out.append(line)
        if first := cell.get("sensitivity", [])[:SENSITIVITIES_IN_A_TABLE]:
            parts = (f"{row['path']} ({100 * row['share']:.0f} % of variance)" for row in first)
            out.append(f"  measure first: {', '.join(parts)}")
    return "\n".join([*out, *constants_text.grid_lines(cells)])


def _figures(cell: Tree) -> list[str] | None:
    found, ratio = cell.get("forecast"), cell.get("ratio")
    if not found or not (cell.get("capacity") or cell.get("probe")):
        return None
    return [
        *(_capacity(cell["capacity"]) if cell.get("capacity") else _rate(cell)),
        *(("n/a" if found[name] is None else f"{found[name]:.0f}") for name in map(column, LIMITS)),
        f"{100 * found['cached_share_of_input']:.1f}",
        f"{found['input_tokens_per_s_per_node']:.0f}",
        f"{found['output_tokens_per_s_per_node']:.0f}",
        "unknown" if found["in_flight_per_node"] is None else f"{found['in_flight_per_node']:.1f}",
        f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else "",
    ]


def _capacity(capacity: Tree) -> tuple[str, str, str]:
    q = capacity["qps_per_node"]
    if capacity["at_end"]:
        return f">= {q['estimate']:.2f}", "open", capacity["binding"].upper()
    ends = ("open" if q[end] is None else f"{q[end]:.2f}" for end in ("low", "high"))
    return f"{q['estimate']:.2f}", f"[{', '.join(ends)}]", capacity["binding"].upper()


def _rate(cell: Tree) -> tuple[str, str, str]:
    """The rate that was asked, in how many draws its bounds are kept, and which one is missed."""
    probe, share = cell["probe"], cell["forecast"]["kept_probability"]
    missed = [limit.upper() for limit in ("ttft", "tpot") if probe[limit]["passed"] is False]
    chance = "unknown" if share is None else f"kept in {100 * share:.0f} %"
    return f"{probe['rate_qps_per_node']:.2f}", chance, "both" if len(missed) > 1 else "".join(missed) or "-"


def rows(cells: Sequence[Tree]) -> pa.Table:
    """A row per cell: its words as text, then figures; null where there is none. Units are in the names.

    The columns and their types do not depend on the answers.
    """
    asked = dict.fromkeys((f"asked.{key}" for cell in cells for key in cell["at"]), pa.string())
    schema = pa.schema([*asked.items(), *TYPES.items()])
    return pa.Table.from_pylist([_row(cell) for cell in cells], schema=schema)


def _row(cell: Tree) -> dict[str, Any]:
    at = {f"asked.{key}": str(value) for key, value in cell["at"].items()}
    asked = {
        name: cell.get("asked", {}).get(name)
        for name in ("model", "hardware", "layout", "routing", "workload", "nodes", "seed")
    }
    capacity, found, ratio = cell.get("capacity") or {}, cell.get("forecast") or {}, cell.get("ratio") or {}
    q = capacity.get("qps_per_node") or {}
    flat = {name: found.get(name) for name in FOUND}
    return {
        **at,
        **asked,
        **{
            f"{limit}_p90_bound_ms": cell.get("asked", {}).get("slo", {}).get(column(limit))
            for limit in LIMITS
        },
        "qps_per_node": q.get("estimate"),
        **{f"qps_per_node_{end}": q.get(end) for end in ("low", "high", "certified")},
        "binding": capacity.get("binding"),
        "binding_probability": capacity.get("binding_probability"),
        "open_above": capacity.get("open_above"),
        "open_below": capacity.get("open_below"),
        **{
            f"ratio_to_first{'' if end == 'value' else f'_{end}'}": ratio.get(end)
            for end in ("value", "low", "high")
        },
        **flat,
        "exit_code": cell["exit_code"],
        "reason": cell["reason"],
    }


def _percent(share: float | None) -> str:
    if share is None:
        return "unknown"
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def _ms(value: float | None) -> str:
    return "does not apply" if value is None else f"{value:.1f} ms"
