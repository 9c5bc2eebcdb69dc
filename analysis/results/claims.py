"""A posterior, and effects of nodes, as the verdict of a run states them."""

from dataclasses import replace

from analysis.capacity.node_effects import NodeEffects
from analysis.capacity.posterior import Capacity
from analysis.results.types.run_verdict import NodeSpread
from analysis.results.types.shared_figures import CapacityFigures
from analysis.stats.estimate import Estimate


def figures(capacity: Capacity, replicas_per_node: float | None) -> CapacityFigures:
    """The figures in QPS per node and, where the replicas are known, per replica."""
    q = Estimate(capacity.qps_per_node, capacity.low, capacity.high, capacity.certified)
    if capacity.queue_grew:
        q = replace(q, low=None, certified=None)
    return CapacityFigures(
        qps_per_node=q,
        qps_per_replica=None if replicas_per_node is None else q.per(replicas_per_node),
        interval="95 % (2.5 to 97.5 % quantile of the posterior); certified is its 5 % quantile",
        binding=capacity.binding,
        binding_probability=capacity.binding_probability,
        open_above=capacity.open_above,
        open_below=capacity.open_below,
        queue_grew=capacity.queue_grew,
        windows_used=tuple(capacity.windows),
        limits=dict(capacity.limits),
    )


def node_spread(effects: NodeEffects) -> NodeSpread:
    """The effects in percent of the mean."""
    percent = tuple(effect.times(100) for effect in effects.effects)
    return NodeSpread(effects.between.times(100), percent, effects.differing)
