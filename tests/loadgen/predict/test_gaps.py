"""loadgen/predict/operating_point.py: bounds on gaps, pooled and by request, and where no gap is known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conf import ConfigError, Experiment, load
from loadgen.cli import engine_model
from loadgen.predict.operating_point import Effort, OperatingPoint, PooledGaps, RateSimulator


def point(rate_qps: float, *words: str) -> OperatingPoint:
    experiment: Experiment = load([*words, "cluster.session=fake"])
    return RateSimulator(experiment, engine_model.simulate, Effort.of(120.0)).at(rate_qps)


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


@pytest.mark.parametrize("layout", ["dp8_attention_ep8", "1p1d_tp4_ep4"])
def test_a_queue_that_nobody_knows_is_refused_in_a_line(layout: str) -> None:
    with pytest.raises(ConfigError, match=f"no queue time of layout={layout}: leave slo.queue"):
        engine_model.refuse_unknown_bounds(load([f"layout={layout}", "slo.queue_p90_ms=500"]))


def test_gaps_outside_the_window_are_left_out() -> None:
    gaps = PooledGaps(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 1, 1]))
    assert gaps.of(np.array([True, True, False, True])).tolist() == [1.0, 2.0, 4.0]


def test_gaps_that_nobody_knows_are_refused_in_a_line(tmp_path: Path) -> None:
    line = {"input_length": 1024, "output_length": 5, "hash_ids": [1, 2]}
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 1000 * i, **line}) + "\n" for i in range(3)))
    recorded = ["workload=trace", f"workload.trace={path}"]
    for words, named in (
        (["workload=chat_sessions"], "sessions"),
        (["layout=dp8_attention_ep8"], "layout=dp8_attention_ep8"),
        (recorded, "prompts that share a trace's prefixes"),
    ):
        for bound in ("slo.itl_p99_ms=80", "slo.itl_pooled_p99_ms=80"):
            with pytest.raises(ConfigError, match=f"no gaps between tokens of {named}: leave slo.itl"):
                engine_model.refuse_unknown_bounds(load([*words, bound]))
    plain = load([*recorded, "slo.itl_p99_ms=80"])
    engine_model.refuse_unknown_bounds(replace(plain, workload=replace(plain.workload, prefix_hit=0.5)))
