"""Power and energy of a run as a line of the screen."""

from analysis.results.types.power_figures import PowerFigures
from analysis.results.types.shared_figures import AskedExperiment

REAL = ("vllm", "external")
"""Engines of whose service one expects to be told its power."""


def lines(asked: AskedExperiment, power: PowerFigures | None) -> list[str]:
    """The power of a node near the capacity, and a request's share of it; no line if the run did not ask."""
    if power is None or (power.unknown and asked.engine not in REAL):
        return []
    quoted = power.quoted
    if quoted is None:
        return [f"  power unknown: {power.unknown}"]
    tokens = (
        f"{_figure(quoted.kwh_per_1m_input_tokens)} kWh per 1M input tokens, "
        f"{_figure(quoted.kwh_per_1m_output_tokens)} per 1M output tokens"
    )
    idle = "idle share unknown"
    if quoted.idle_share is not None and power.idle_watts_per_node is not None:
        idle = f"{power.idle_watts_per_node:,.0f} W idle, {quoted.idle_share:.0%} of it"
    told = sum(node.gpus_told for node in power.nodes)
    return [
        f"  power {quoted.watts_per_node:,.0f} W per node ({power.of}, {told} GPUs of {len(power.nodes)} "
        f"node(s)) at {quoted.rate_qps_per_node:.2f} QPS per node, {idle}",
        f"  energy {_figure(quoted.wh_per_request)} Wh per request, {tokens}",
    ]


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
