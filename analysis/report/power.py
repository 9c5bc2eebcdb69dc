"""Power and energy of a run: each node, each window, or why they are unknown."""

from analysis.report.blocks import Block, Missing, Paragraph, Section
from analysis.report.wording import figure
from analysis.results.energy import WHOLE, NodeFigures, PowerFigures, WindowEnergy
from analysis.views.shown import Table

TITLE = "Power and energy"
PURPOSE = "What the nodes drew, and what a request costs of it."
WINDOW_HEADS = (
    *("window", "QPS per node", "W per node", "idle share", "Wh per request"),
    *("kWh per 1M input tokens", "kWh per 1M output tokens", "covered by samples"),
)
NODE_HEADS = (
    *("node", "GPUs that told", "by", "GPUs: W at rest", "in the window"),
    *("whole node: W at rest", "in the window"),
)
MEANING = (
    "Watts are the mean of {of} over a window, from samples about a second apart. Energy is that of all "
    "nodes over the requests due in the window that were answered: what failed is paid by the others. The "
    "idle share is the power of the warm service before the load over that in the window."
)


def sections(power: PowerFigures | None) -> list[Section]:
    """The section of a run that asked its nodes; none of a run before there were such figures."""
    if power is None:
        return []
    tables: list[Block] = [_windows(power)] if power.windows else []
    tables += [_nodes(power)] if power.nodes else []
    first: Block = Paragraph(MEANING.format(of=power.of))
    if power.unknown:
        first = Missing(TITLE, f"unknown, for {power.unknown}")
    return [Section("power", TITLE, PURPOSE, (first, *tables))]


def _windows(power: PowerFigures) -> Table:
    caption = "Each window" if power.at is None else f"Each window; the verdict quotes window {power.at}"
    return Table(caption, WINDOW_HEADS, tuple(map(_window, power.windows)))


def _window(one: WindowEnergy) -> tuple[str, ...]:
    energy = one.wh_per_request, one.kwh_per_1m_input_tokens, one.kwh_per_1m_output_tokens
    return (
        str(one.index),
        figure(one.rate_qps_per_node),
        figure(one.watts_per_node),
        _percent(one.idle_share),
        *map(figure, energy),
        _percent(one.coverage),
    )


def _nodes(power: PowerFigures) -> Table:
    note = (
        ""
        if power.of == WHOLE
        else "CPUs, memory, network and fans of a node are not in the watts of its GPUs."
    )
    caption = "Each node, in the window that the verdict quotes"
    return Table(caption, NODE_HEADS, tuple(map(_node, power.nodes)), note=note)


def _node(one: NodeFigures) -> tuple[str, ...]:
    told = f"{one.gpus_told} of {one.gpus}"
    watts = one.idle_gpu_watts, one.gpu_watts, one.idle_meter_watts, one.meter_watts
    return one.name, told, one.source or "none", *map(figure, watts)


def _percent(share: float | None) -> str:
    return figure(None) if share is None else f"{100 * share:.0f} %"
