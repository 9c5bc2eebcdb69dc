"""loadgen/fleet/rows.py: figures of gaps that bounds ask for, beside the gaps of a row."""

from array import array

from conf.specs.bounds import Slo
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import GapRecord


def exchange(*gaps_us: int, ended: bool = True) -> Exchange:
    found = Exchange(0, 1)
    found.gaps_us = array("i", gaps_us)
    found.end_ns = 1 if ended else None
    return found


def test_bounds_ask_for_their_own_figures_only() -> None:
    usual = GapRecord.from_bounds(Slo("", 2000.0, 100.0), kept=True)
    assert (usual.within, usual.most_ms) == (None, None)
    both = GapRecord.from_bounds(Slo("", 2000.0, None, {"itl_p99": 80.0, "itl_pooled_p95": 50.0}), kept=False)
    assert (both.kept, both.within, both.most_ms) == (False, 0.99, 50.0)


def test_a_quantile_of_its_own_gaps_and_those_over_the_bound() -> None:
    asked = GapRecord(kept=False, within=0.5, most_ms=30.0)
    columns = asked.columns([exchange(10_000, 20_000, 40_000), exchange(), exchange(5, ended=False)], 1.0)
    assert columns["own_itl_us"] == [20_000, None, None]
    assert (columns["gaps"], columns["gaps_over"]) == ([3, 0, None], [1, 0, None])
    assert columns["itl_us"] == [None] * 3
    fast = asked.columns([exchange(10_000, 20_000, 40_000)], 2.0)
    assert (fast["own_itl_us"], fast["gaps_over"]) == ([40_000], [2])


def test_what_nobody_asks_for_is_null() -> None:
    columns = GapRecord(kept=False).columns([exchange(10)], 1.0)
    assert all(values == [None] for values in columns.values())
