"""Bounds of an SLO: the keys by which they are set, and the quantile that they limit."""

from conf.specs.bounds import ALLOWED_OVER, LIMITS, QUANTILE, Bound
from conf.specs.experiment import Slo


def test_an_slo_lists_its_bounds_under_the_keys_that_set_them() -> None:
    slo = Slo("any", ttft_p90_ms=2000.0, tpot_p90_ms=50.0)
    assert slo.bounds == (Bound("ttft", 2000.0), Bound("tpot", 50.0))
    assert {bound.column: bound.ms for bound in slo.bounds} == {"ttft_p90_ms": 2000.0, "tpot_p90_ms": 50.0}
    assert tuple(bound.limit for bound in slo.bounds) == LIMITS


def test_the_rest_beyond_the_quantile_may_be_over() -> None:
    assert (QUANTILE, ALLOWED_OVER) == (0.9, 0.1)
