"""serve_apps/engine_model/service/ray_autoscaler.py, held to Ray's own rule over random inputs."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve import autoscaling_policy
from ray.serve._private.common import DeploymentID, TimeStampedValue
from ray.serve._private.metrics_utils import aggregate_timeseries, merge_instantaneous_total
from ray.serve.config import AggregationFunction, AutoscalingConfig, AutoscalingContext

from serve_apps.engine_model.service.ray_autoscaler import (
    RayAutoscaler,
    ReplicaLoad,
    Report,
    ScalingRule,
    Wish,
    decided,
    ongoing,
    scaled,
)

RULES = st.builds(
    lambda least, more, target, up, down, fast, slow: ScalingRule(
        least, least + more, target, up, down, fast, slow
    ),
    *(st.integers(1, 4), st.integers(0, 20), st.floats(0.5, 30), st.sampled_from([0.0, 5.0, 30.0])),
    *(st.sampled_from([0.0, 20.0, 600.0]), st.floats(0.2, 2), st.floats(0.1, 1)),
)
LOADS = st.lists(
    st.tuples(st.integers(0, 12), st.floats(0, 200), st.floats(0.1, 40)), min_size=1, max_size=40
)


@given(rule=RULES, loads=LOADS)
def test_the_rule_is_rays_own(rule: ScalingRule, loads: list[tuple[int, float, float]]) -> None:
    wish, target, state, now_s = Wish(), rule.min_replicas, {}, 1000.0
    for running, requests, later_s in loads:
        now_s += later_s
        theirs, state = _theirs(rule, running, target, requests, now_s, state)
        found, wish = decided(rule, ReplicaLoad(running, target, requests), wish, now_s)
        assert found == rule.bounded(theirs)
        target = found


def _theirs(
    rule: ScalingRule, running: int, target: int, requests: float, now_s: float, state: dict[str, Any]
) -> tuple[int, dict[str, Any]]:
    """What Ray's default policy decides at a time of ours, before it is bounded."""
    config = AutoscalingConfig(
        min_replicas=rule.min_replicas,
        max_replicas=rule.max_replicas,
        target_ongoing_requests=rule.target_ongoing_requests,
        upscale_delay_s=rule.upscale_delay_s,
        downscale_delay_s=rule.downscale_delay_s,
        upscaling_factor=rule.upscaling_factor,
        downscaling_factor=rule.downscaling_factor,
    )
    context = AutoscalingContext(
        DeploymentID("engines"),
        *("engines", "app", running, target, []),
        *(requests, 0.0, {}, {}, rule.min_replicas, rule.max_replicas, state, None, None, None, config),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(autoscaling_policy.time, "time", lambda: now_s)
        whole = autoscaling_policy._apply_autoscaling_config(autoscaling_policy.default_autoscaling_policy)
        return whole(context)


NOTES = st.lists(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 50)), min_size=1, max_size=6),
    min_size=1,
    max_size=5,
)


@given(notes=NOTES)
def test_requests_in_flight_are_averaged_as_ray_does(notes: list[list[tuple[int, int]]]) -> None:
    # Ray rounds times to 10 ms; ours are multiples of 0.1 s.
    series = [sorted(dict(one).items()) for one in notes]
    reports = [Report([at / 10 for at, _ in one], [float(count) for _, count in one]) for one in series]
    now_s = 31.0
    rays = [[TimeStampedValue(at / 10, float(count)) for at, count in one] for one in series]
    merged = merge_instantaneous_total(rays)
    theirs = aggregate_timeseries(
        merged,
        AggregationFunction.MEAN,
        last_window_s=now_s - merged[-1].timestamp if merged else 1.0,
        window_start=max(one[0].timestamp for one in rays),
    )
    assert ongoing(reports, now_s) == pytest.approx(theirs or 0.0, abs=1e-6)


def test_more_requests_than_wanted_bring_replicas_after_the_delay() -> None:
    rule = ScalingRule(1, 10, 5.0, upscale_delay_s=30.0, downscale_delay_s=60.0)
    scaler, target, at_s = RayAutoscaler(rule), 2, 0.0
    asked = []
    while at_s < 120:
        target = scaler.asked(at_s, target, {0: 20, 1: 20})
        asked.append((at_s, target))
        at_s += scaler.step_s
    first = next(at for at, count in asked if count > 2)
    assert 30.0 <= first <= 30.0 + 2 * rule.metrics_interval_s
    assert target == 8  # 40 requests, five on each


def test_a_smaller_fleet_keeps_the_requests_on_each() -> None:
    rule = scaled(ScalingRule(4, 40, 7.0), 0.25)
    assert (rule.min_replicas, rule.max_replicas, rule.target_ongoing_requests) == (1, 10, 7.0)


@pytest.mark.parametrize(
    "wrong", [{"min_replicas": 0}, {"max_replicas": 0}, {"target_ongoing_requests": 0.0}]
)
def test_a_rule_that_ray_would_refuse_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be above 0|in order"):
        ScalingRule(**{"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1.0} | wrong)


def test_between_reports_the_last_note_weighs_more_and_more() -> None:
    seen = [Report((0.0, 6.0), (2.0, 8.0))]
    assert [ongoing(seen, now_s) for now_s in (6.0, 12.0, 18.0)] == [2.0, 5.0, 6.0]
