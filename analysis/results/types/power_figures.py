"""Power and energy in a run's verdict; an unknown figure is None, never 0."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node: how many of its GPUs told, and its watts at rest and in the window that the verdict quotes.

    `meter_watts` are those of the whole machine, which only few tell.
    """

    name: str
    gpus_told: int
    gpus: int
    source: str = ""
    idle_gpu_watts: float | None = None
    gpu_watts: float | None = None
    idle_meter_watts: float | None = None
    meter_watts: float | None = None


@dataclass(frozen=True, slots=True)
class WindowEnergy:
    """Power and energy in one window of `rate_qps_per_node`; `coverage` is the least of its nodes.

    Watts are the mean of the nodes. Energy is that of all nodes over the requests due in the window that were
    answered, and over their tokens: what failed is paid by the others. `idle_share` is watts at rest over
    watts in the window.
    """

    index: int
    rate_qps_per_node: float
    coverage: float
    watts_per_node: float | None = None
    wh_per_request: float | None = None
    kwh_per_1m_input_tokens: float | None = None
    kwh_per_1m_output_tokens: float | None = None
    idle_share: float | None = None


@dataclass(frozen=True, slots=True)
class PowerFigures:
    """Power and energy of a run, or why they are `unknown`.

    `of` says whose: whole machines, if every node has a meter of its own, else the GPUs alone. `at` is the
    index of the window that the verdict quotes, the one nearest to the capacity.
    """

    unknown: str = ""
    of: str = ""
    idle_watts_per_node: float | None = None
    at: int | None = None
    nodes: tuple[NodeFigures, ...] = ()
    windows: tuple[WindowEnergy, ...] = ()

    @property
    def quoted(self) -> WindowEnergy | None:
        """The window `at`; its watts are known."""
        known = (window for window in self.windows if window.watts_per_node is not None)
        return next((window for window in known if window.index == self.at), None)
