"""Power and energy of a run as facts."""

from analysis.results.types.power_figures import PowerFigures
from analysis.results.types.shared_figures import AskedExperiment
from analysis.stats.estimate import number
from analysis.views.shown import Fact

REAL = ("vllm", "external")
"""Engines of whose service a reader expects to see the power."""


def facts(asked: AskedExperiment, power: PowerFigures | None) -> list[Fact]:
    """The power of a node near the capacity and a request's share of it; none if the run did not ask."""
    if power is None or (power.unknown and asked.engine not in REAL):
        return []
    quoted = power.quoted
    if quoted is None:
        return [("power", f"unknown: {power.unknown}")]
    idle = "idle share unknown"
    if quoted.idle_share is not None and power.idle_watts_per_node is not None:
        idle = f"{power.idle_watts_per_node:,.0f} W idle, {quoted.idle_share:.0%} of it"
    gpus = sum(node.gpus_told for node in power.nodes)
    whose = f"{power.of}, {gpus} GPUs of {len(power.nodes)} node(s)"
    tokens = (
        f"{number(quoted.kwh_per_1m_input_tokens, 3)} kWh per 1M input tokens, "
        f"{number(quoted.kwh_per_1m_output_tokens, 3)} per 1M output tokens"
    )
    return [
        (
            "power",
            f"{quoted.watts_per_node:,.0f} W per node ({whose}) at {number(quoted.rate_qps_per_node)} QPS per"
            f" node, {idle}",
        ),
        ("energy", f"{number(quoted.wh_per_request, 3)} Wh per request, {tokens}"),
    ]
