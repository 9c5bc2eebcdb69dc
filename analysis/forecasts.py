"""What the engine model says, for people: lines of one prediction, a grid as a table or as columns.

Knows the tree of a prediction; computes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

Tree = Mapping[str, Any]

TERMS_SHOWN = 4
SENSITIVITIES_SHOWN = 12
COLUMNS = (
    ("QPS/node", 9),
    ("95 % interval", 16),
    ("limit", 6),
    ("TTFT p90 ms", 12),
    ("TPOT p90 ms", 12),
    ("in tok/s", 9),
    ("out tok/s", 10),
    ("in flight", 10),
    ("over the first", 20),
)
CAUTION = (
    "constants are assumptions with sources, no measurement of this machine; calibrate to narrow the interval"
)


def lines(tree: Tree) -> list[str]:
    """What a planner should read below the answer."""
    found = tree["forecast"]
    latencies = f"p90 TTFT {_ms(found['ttft_p90_ms'])}, p90 TPOT {_ms(found['tpot_p90_ms'])}"
    terms = sorted(found["step_terms"].items(), key=lambda term: -term[1])[:TERMS_SHOWN]
    return [
        f"  at {found['rate_qps_per_node']:.4g} QPS per node: {latencies}",
        *_service(tree["asked"], found["rate_qps_per_node"]),
        f"  per node {found['input_tokens_per_s_per_node']:.0f} input"
        f" ({100 * found['cached_share_of_input']:.0f} % cached) and"
        f" {found['output_tokens_per_s_per_node']:.0f} output tok/s,"
        f" {found['in_flight_per_node']:.1f} requests in flight,"
        f" KV cache {_percent(found['kv_used'])} in use,"
        f" MFU {_percent(found['mfu'])}",
        *(
            [f"  step time: {', '.join(f'{name} {_percent(share)}' for name, share in terms)}"]
            if terms
            else []
        ),
        *_evidence(found, tree.get("calibration", "")),
        *_sensitivity_lines(tree.get("sensitivity", [])),
    ]


def _service(asked: Tree, rate_qps: float) -> list[str]:
    """What many nodes take together."""
    if asked["nodes"] == 1:
        return []
    own = asked["routing"] == "per_node"
    alone = ", each with arrivals of its own: one was simulated for all" if own else ""
    return [f"  that is {rate_qps * asked['nodes']:.6g} QPS of {asked['nodes']} nodes{alone}"]


def _evidence(found: Tree, calibration: str) -> list[str]:
    caution = f"calibrated by {calibration}" if calibration else CAUTION
    hours = found["simulated_node_s"] / 3600
    out = [f"  evidence: {found['requests']} requests in {hours:.3g} virtual hours of a node{_noise(found)}"]
    if found.get("kept_probability") is not None:
        kept = f"{100 * found['kept_probability']:.0f} % of {found['draws']} draws"
        out.append(f"  both bounds are kept in {kept} of the uncertain constants; {caution}")
    elif found.get("draws"):
        open_draws = found["open_draws"]
        beyond = f", {open_draws} of them beyond an end of the search" if open_draws else ""
        count = len(found["constants_sampled"])
        out.append(f"  interval: {found['draws']} draws of {count} uncertain constants{beyond}; {caution}")
    elif "draws" in found:
        out.append(
            "  interval: Monte Carlo noise alone; no constant of this model and hardware has an interval"
        )
    return out


def _noise(found: Tree) -> str:
    if "noise_pct" not in found:
        return ""
    noise = found["noise_pct"]
    return "; Monte Carlo noise unknown" if noise is None else f"; Monte Carlo noise {noise:.1f} % (95 %)"


def _sensitivity_lines(rows: Sequence[Tree]) -> list[str]:
    if not rows:
        return []
    head = f"  {'constant':<40} {'value':>9} {'elasticity':>10} {'QPS at its ends':>16} {'of variance':>11}"
    out = ["  what to measure first: each constant alone", head]
    for row in rows[:SENSITIVITIES_SHOWN]:
        it = row["constant"]
        ends = (
            "exact" if row["at_low_qps"] is None else f"{row['at_low_qps']:.2f} to {row['at_high_qps']:.2f}"
        )
        out.append(
            f"  {row['path']:<40} {it['value']:>9.4g} {row['elasticity']:>+10.2f} {ends:>16}"
            f" {100 * row['share']:>9.0f} %  {it['unit']}"
        )
    if len(rows) > SENSITIVITIES_SHOWN:
        out.append(f"  and {len(rows) - SENSITIVITIES_SHOWN} more, which matter less (--json has all)")
    return out


def table(axes: Sequence[str], cells: Sequence[Tree]) -> str:
    """The grid as text: one line per cell, the reason where there is no number."""
    widths = [max(len(axis), *(len(str(cell["at"][axis])) for cell in cells)) + 2 for axis in axes]
    heads = "".join(f"{axis:<{width}}" for axis, width in zip(axes, widths, strict=True))
    out = [heads + "".join(f"{name:>{width}}" for name, width in COLUMNS)]
    for cell in cells:
        at = "".join(f"{cell['at'][axis]!s:<{width}}" for axis, width in zip(axes, widths, strict=True))
        figures = _figures(cell)
        if figures is None:
            out.append(f"{at}  {cell['reason']}")
            continue
        pairs = zip(figures, COLUMNS, strict=True)
        out.append(at + "".join(f"{figure:>{width}}" for figure, (_, width) in pairs))
    return "\n".join(out)


def _figures(cell: Tree) -> list[str] | None:
    found, capacity = cell.get("forecast"), cell.get("capacity")
    if not found or not capacity:
        return None
    q, ratio = capacity["qps_per_node"], cell.get("ratio")
    return [
        f"{'>= ' if capacity['open_above'] else ''}{q['estimate']:.2f}",
        "open" if capacity["open_above"] else f"[{q['low']:.2f}, {q['high']:.2f}]",
        capacity["binding"].upper(),
        *(
            ("n/a" if found[name] is None else f"{found[name]:.0f}")
            for name in ("ttft_p90_ms", "tpot_p90_ms")
        ),
        f"{found['input_tokens_per_s_per_node']:.0f}",
        f"{found['output_tokens_per_s_per_node']:.0f}",
        f"{found['in_flight_per_node']:.1f}",
        f"{ratio['value']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]" if ratio else "",
    ]


def rows(cells: Sequence[Tree]) -> pa.Table:
    """A row per cell: its words as text, then figures; null where there is none. Units are in the names."""
    return pa.table({name: [_row(cell).get(name) for cell in cells] for name in _names(cells)})


def _names(cells: Sequence[Tree]) -> list[str]:
    names: dict[str, None] = {}
    for cell in cells:
        names |= dict.fromkeys(_row(cell))
    return list(names)


def _row(cell: Tree) -> dict[str, Any]:
    at = {f"asked.{key}": str(value) for key, value in cell["at"].items()}
    asked = {
        name: cell.get("asked", {}).get(name)
        for name in ("model", "hardware", "layout", "routing", "workload", "nodes", "seed")
    }
    capacity, found, ratio = cell.get("capacity") or {}, cell.get("forecast") or {}, cell.get("ratio") or {}
    q = capacity.get("qps_per_node") or {}
    flat = {name: value for name, value in found.items() if isinstance(value, int | float) or value is None}
    return {
        **at,
        **asked,
        **{
            f"{limit}_p90_bound_ms": cell.get("asked", {}).get("slo", {}).get(f"{limit}_p90_ms")
            for limit in ("ttft", "tpot")
        },
        "qps_per_node": q.get("estimate"),
        **{f"qps_per_node_{end}": q.get(end) for end in ("low", "high", "certified")},
        "binding": capacity.get("binding"),
        "binding_probability": capacity.get("binding_probability"),
        "open_above": capacity.get("open_above"),
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
