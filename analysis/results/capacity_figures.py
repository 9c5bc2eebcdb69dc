"""The posterior of a capacity as a verdict states it, per node and per replica."""

from dataclasses import asdict

from analysis.capacity.posterior import Capacity
from analysis.results.types.shared_figures import CapacityFigures, LimitFigures, QpsFigures
from conf.specs.bounds import LIMITS


def capacity_figures(capacity: Capacity, replicas_per_node: float | None) -> CapacityFigures:
    """The figures in QPS per node and, where the replicas are known, per replica."""
    figures = QpsFigures(capacity.qps_per_node, capacity.low, capacity.high, capacity.certified)
    return CapacityFigures(
        qps_per_node=figures,
        qps_per_replica=None if replicas_per_node is None else figures.over(replicas_per_node),
        interval="95 % (2.5 to 97.5 % quantile of the posterior); certified is its 5 % quantile",
        binding=capacity.binding,
        binding_probability=capacity.binding_probability,
        open_above=capacity.open_above,
        open_below=capacity.open_below,
        dwells_used=tuple(capacity.dwells),
        limits={limit: LimitFigures(**asdict(getattr(capacity, limit))) for limit in LIMITS},
    )
