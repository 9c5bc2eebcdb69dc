"""Specs of the machines: nodes, their accelerator, and the load generators."""

from dataclasses import dataclass
from typing import Annotated, Literal

from conf.specs.ranges import AtLeastOne, NotNegative, Positive, Range
from conf.specs.step_time import Efficiency

MOST_NODES, MOST_GPUS = 100_000, 1024
"""Limits beyond any cluster of today (our choice)."""
MOST_ACTORS, MOST_WARMUP = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that the experiment runs on.

    `session` is `local` (one Ray node on this machine), `fake` (one Ray process group per node,
    all on this machine) or `address` (join the cluster at `address`). With `engine=external`,
    `nodes` counts the nodes behind the endpoints. A sweep that loses its service waits up to `recovery_s` for
    its return, in real seconds that its budget does not count; 0 ends the sweep at once.
    """

    name: str
    session: Literal["local", "fake", "address"] = "local"
    address: str = "auto"
    nodes: Annotated[int, Range(ge=1, le=MOST_NODES)] = 1
    gpus_per_node: Annotated[int, Range(ge=1, le=MOST_GPUS)] = 8
    recovery_s: NotNegative = 300.0


@dataclass(frozen=True, slots=True)
class Hardware:
    """One accelerator. Unknown figures are null, never zero, and cannot be used.

    `link_bytes_per_s` is one direction of one link; a `mesh` has `links` of them, one per peer;
    behind a `switch` one fat link per GPU is shared by all peers (`links` = 1).
    """

    name: str
    arch: str
    hbm_bytes: Positive
    hbm_bytes_per_s: Positive
    efficiency: Efficiency
    source: str
    bf16_flop_per_s: Positive | None = None
    fp8_flop_per_s: Positive | None = None
    fp4_flop_per_s: Positive | None = None
    topology: Literal["mesh", "switch"] = "mesh"
    links: AtLeastOne = 7
    link_bytes_per_s: Positive | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The load generators: `actors` Ray actors with `cpus_per_actor` CPUs each.

    A request fails after `request_timeout_s`; None is `Experiment.request_timeout_s`.
    """

    name: str
    actors: Annotated[int, Range(ge=1, le=MOST_ACTORS)] = 1
    cpus_per_actor: NotNegative = 1.0
    request_timeout_s: Positive | None = None
    drain_s: Positive = 30.0
    warmup_requests: Annotated[int, Range(ge=1, le=MOST_WARMUP)] = 64
    record_itl: bool = True
