"""conf.specs.bounds: the keys that set an SLO's bounds, their names, and the quantile each limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import load
from conf.compose import dump
from conf.specs.bounds import (
    LIMITS,
    METRICS,
    Slo,
    allowed_over,
    column,
    label,
    limit_of,
    metric_of,
    parsed,
    quantile_of,
)


def test_the_rest_beyond_the_quantile_may_be_over() -> None:
    assert [(quantile_of(limit), allowed_over(limit)) for limit in LIMITS] == [(0.9, 0.1)] * 2
    assert [allowed_over(limit) for limit in ("itl_p99", "e2e_p999", "ttft_p50")] == [0.01, 0.001, 0.5]


@given(st.sampled_from([*METRICS, "joint"]), st.integers(500, 999))
def test_a_name_says_latency_and_quantile(metric: str, thousandths: int) -> None:
    limit = limit_of(metric, thousandths / 1000)
    assert parsed(limit) == (metric, thousandths / 1000) and metric_of(limit) == metric
    assert column(limit).startswith(f"{metric}_p") and column(limit).endswith("_ms")


@pytest.mark.parametrize(
    "limit", ["itl", "e2e", "itl_p49", "itl_p9", "itl_p1000", "queue_p9", "", "itl_p99_ms"]
)
def test_another_name_is_refused(limit: str) -> None:
    with pytest.raises(ValueError, match="is no bound"):
        parsed(limit)


def slo_of(*words: str) -> Slo:
    return load(words).slo


def test_short_words_add_bounds_and_null_takes_one_away() -> None:
    slo = slo_of("slo.itl_p99_ms=80", "slo.e2e_p95_ms=15000", "slo.joint=.9", "slo.tpot_p90_ms=null")
    assert slo.limits == ("ttft", "itl_p99", "e2e_p95", "joint_p90")
    assert (slo.bound_ms("itl_p99"), slo.bound_ms("e2e_p95")) == (80.0, 15000.0)
    assert [label(limit) for limit in slo.limits] == [
        *("p90 TTFT", "p99 ITL", "p95 E2E", "90 % of requests within all bounds")
    ]


def test_a_list_of_bounds_replaces_the_usual_ones_and_those_of_a_saved_run(tmp_path) -> None:
    listed = "slo.bounds=[{metric: e2e, quantile: .95, ms: 9000}, {metric: tpot, quantile: .9, ms: 70}]"
    assert slo_of(listed).limits == ("tpot", "e2e_p95")
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(load(["slo.itl_p99_ms=80"])))
    assert load([], saved).slo.limits == ("ttft", "tpot", "itl_p99")
    assert load(["slo.itl_p99_ms=70"], saved).slo.bound_ms("itl_p99") == 70
    assert load([listed], saved).slo.limits == ("tpot", "e2e_p95")


def test_an_answer_that_just_meets_its_bounds() -> None:
    assert Slo("", 2000.0, 100.0).answer_s(140) == 16.0
    assert Slo("", 2000.0, 100.0, {"e2e_p95": 9000.0}).answer_s(140) == 9.0
    assert Slo("", None, None, {"e2e_p95": 9000.0, "itl_p99": 50.0}).first_token_ms == 9000.0
    assert Slo("", 2000.0, None, {"ttft_p99": 1500.0}).first_token_ms == 1500.0


def test_scaled_bounds_keep_the_joint_share() -> None:
    slo = Slo("", 2000.0, None, {"itl_p99": 50.0, "e2e_p95": None}, joint=0.95).scaled(0.5)
    assert {bound.limit: bound.ms for bound in slo.bounds if bound.limit != "joint_p95"} == {
        "ttft": 1000.0,
        "itl_p99": 25.0,
    }
    assert slo.joint == 0.95
