"""Fleets of the engine model that follow a day's demand: fixed, scheduled and autoscaled. A composition root.

The day itself is in `elastic_day`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.autoscaling.elastic import DayQuestion, ElasticDay
from conf import ConfigError, Experiment
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import engine_model
from loadgen.predict.elastic_day import SimulatedFleet, elastic_day
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats
from serve_apps.engine_model.compiled.fast_engine import FastSpec, UnsupportedByFastPath
from serve_apps.engine_model.service.elastic import ElasticTimes, Lifecycle, Wanted, serve_elastic
from serve_apps.engine_model.service.ray_autoscaler import RayAutoscaler, ScalingRule, scaled
from serve_apps.engine_model.service.routed import Requests

STEP_S = 5.0
"""Time between two looks at a fleet that follows no rule of Ray's (our choice)."""


def simulated_day(experiment: Experiment, question: DayQuestion, config: Mapping[str, Any]) -> ElasticDay:
    """The outcomes of the three fleets; `config` is Ray Serve's `autoscaling_config` of the whole fleet.

    Raises ConfigError where the engine model cannot simulate such a day.
    """
    if not isinstance(experiment.engine, SimulatedEngine):
        raise ConfigError(f"the engine model answers for engine=simulated, not {experiment.engine.kind}")
    if experiment.layout.prefill is not None or experiment.layout.data_parallel > 1:
        raise ConfigError(f"the simulated day knows no layout={experiment.layout.name}")
    spec = FastSpec.of(*engine_model.parts(experiment))
    per_node, policy = experiment.layout.replicas_per_node, engine_model.balance(experiment).policy
    rule = ScalingRule(**config)

    def serve(
        name: str, fleet: SimulatedFleet, due_s: Floats, asked: Sequence[Ints], seed: int
    ) -> ElasticTimes:
        life, wanted = _followed(name, fleet, per_node, scaled(rule, fleet.share))
        return serve_elastic(spec, Requests(due_s, asked), policy, life, wanted, seed)

    try:
        return elastic_day(question, experiment, serve)
    except UnsupportedByFastPath as why:
        raise ConfigError(f"the simulated day is not possible: {why}") from why


def _followed(
    name: str, fleet: SimulatedFleet, per_node: int, rule: ScalingRule
) -> tuple[Lifecycle, Callable[[], Wanted]]:
    """The lives of a fleet's engines, and what asks for their number; a fixed fleet's lost node is gone."""
    every, begin = fleet.nodes * per_node, fleet.scheduled_nodes(0.0) * per_node

    def life(slots: int, first: int, step_s: float, replaced: bool = True) -> Lifecycle:
        return Lifecycle(slots, per_node, first, fleet.scale_up_s, step_s, fleet.lost_s, replaced)

    if name == "fixed":
        return life(every, every, STEP_S, replaced=False), lambda: lambda now_s, target, requests: every
    if name == "scheduled":
        slots = (max(fleet.hourly_nodes) + 1) * per_node

        def scheduled(now_s: float, target: int, requests: Mapping[int, int]) -> int:
            return fleet.scheduled_nodes(now_s) * per_node

        return life(slots, begin, STEP_S), lambda: scheduled
    slots = rule.max_replicas + per_node
    return life(slots, rule.bounded(begin), RayAutoscaler(rule).step_s), lambda: RayAutoscaler(rule).asked
