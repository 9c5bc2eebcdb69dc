"""loadgen/predict/operating_point.py: bounds on gaps, pooled and by request, and where no gap is known."""

import numpy as np
import pytest

from conf import ConfigError, Experiment, load
from loadgen.cli import engine_model
from loadgen.predict.operating_point import Effort, OperatingPoint, PooledGaps, RateSimulator


def point(rate_qps: float, *words: str) -> OperatingPoint:
    experiment: Experiment = load([*words, "cluster.session=fake"])
    return RateSimulator(experiment, engine_model.simulate, Effort.from_budget(120.0)).at(rate_qps)


def test_the_gaps_of_an_answer_alone_are_its_time_per_token() -> None:
    alone = point(0.05, "slo.itl_pooled_p50_ms=80", "slo.itl_p50_ms=80")
    assert alone.quantile_ms("itl_pooled_p50") == pytest.approx(np.median(alone.tpot_ms), rel=0.02)
    assert len(alone.gaps_ms) == 139 * len(alone.ttft_ms)


def test_pooled_gaps_hold_those_of_every_request() -> None:
    busy = point(3.0, "slo.itl_pooled_p99_ms=330", "slo.itl_p99_ms=330", "slo.itl_within=.9")
    assert busy.gaps_ms.max() >= np.nanmax(busy.itl_ms) > busy.gaps_ms.mean() > busy.gaps_ms.min()
    assert busy.gaps_ms.mean() == pytest.approx(np.nanmean(busy.tpot_ms), rel=0.001)
    low_high = busy.interval_ms("itl_pooled_p99")
    assert low_high and low_high[0] < (busy.quantile_ms("itl_pooled_p99") or 0) < low_high[1]


def test_a_request_waits_in_the_queue_only_where_steps_are_full() -> None:
    alone, busy = (point(rate_qps, "slo.queue_p90_ms=500") for rate_qps in (0.05, 4.0))
    assert alone.quantile_ms("queue_p90") == 0.0
    assert (busy.queue_ms >= 0).all() and (busy.queue_ms < busy.ttft_ms).all()
    assert (busy.quantile_ms("queue_p90") or 0.0) > 100.0


def test_a_queue_that_nobody_knows_is_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match="no queue time of layout=1p1d_tp4_ep4: leave slo.queue"):
        engine_model.refuse_unknown_bounds(load(["layout=1p1d_tp4_ep4", "slo.queue_p90_ms=500"]))


def test_gaps_outside_the_window_are_left_out() -> None:
    gaps = PooledGaps(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 1, 1]))
    assert gaps.within(np.array([True, True, False, True])).tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("layout", ["dp8_attention_ep8", "1p1d_tp4_ep4"])
def test_gaps_are_known_of_every_layout(layout: str) -> None:
    seen = point(0.5, f"layout={layout}", "slo.itl_p99_ms=330", "slo.itl_pooled_p99_ms=330")
    assert seen.gaps_ms.max() >= np.nanmax(seen.itl_ms) > 0
    assert seen.gaps_ms.mean() == pytest.approx(np.nanmean(seen.tpot_ms), rel=0.001)
