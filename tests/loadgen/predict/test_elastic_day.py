"""loadgen/predict/elastic_day.py: rates of a day of fleets, and how requests over bounds are counted."""

from typing import NamedTuple

import numpy as np
import pytest

from analysis.autoscaling import elastic
from analysis.autoscaling.elastic import DayQuestion
from conf import ConfigError, load
from loadgen.predict import elastic_day as days
from loadgen.predict.elastic_day import DAY_S, DayArrivals, DayRates, SimulatedFleet

HOURLY = tuple(float(rate) for rate in (*range(1, 13), *range(12, 0, -1)))


class Seen(NamedTuple):
    first_s: np.ndarray
    last_s: np.ndarray
    at_s: np.ndarray
    nodes: np.ndarray


def test_rates_hold_the_hours_ramps_and_the_crowd() -> None:
    rates = DayRates(HOURLY, crowd_from_s=5 * 3600.0 + 1200)
    middle = rates.at((np.arange(24) + 0.25) * 3600)
    assert middle == pytest.approx(HOURLY)
    assert rates.at(np.array([3600.0]))[0] == pytest.approx(1.5)  # in the middle of the ramp from 1 to 2
    crowd = rates.at(5 * 3600.0 + 1200 + np.array([-1.0, 0.0, 30.0, 60.0, 300.0, 600.0]))
    assert crowd == pytest.approx([6, 6, 12, 18, 18, 6])
    assert rates.at(np.array([0.0])) == pytest.approx(rates.at(np.array([DAY_S])))


def test_a_large_fleet_is_simulated_in_part() -> None:
    asked = DayQuestion(tuple(100 * rate for rate in HOURLY), tuple(range(24, 48)), 400, 600.0)
    fleet = SimulatedFleet.of(asked)
    assert fleet.nodes < 400 and fleet.share == fleet.nodes / 400
    assert sum(asked.hourly_qps) * 3600 * fleet.share < 1.05 * days.MOST_REQUESTS
    assert fleet.hourly_nodes[0] == np.ceil(24 * fleet.share)
    small = SimulatedFleet.of(DayQuestion(HOURLY, (2,) * 24, 5, 600.0))
    assert (small.nodes, small.share) == (5, 1.0)


def test_a_schedule_asks_ahead_of_the_ramp_and_lets_go_after_the_hour() -> None:
    fleet = SimulatedFleet(9, 1.0, tuple(range(1, 25)), 600.0, 0.0)
    # The ramp to the second hour begins at 3300 s, and an engine takes 600 s.
    assert fleet.scheduled_nodes(2600.0) == 1 and fleet.scheduled_nodes(2701.0) == 2
    assert fleet.scheduled_nodes(DAY_S - 1.0) == 24


def test_a_request_that_failed_is_over_every_bound() -> None:
    asked = load(["slo.ttft_p90_ms=1000", "slo.tpot_p90_ms=50", "slo.joint=.9"])
    arrivals = DayArrivals(np.array([0.0, 10.0, 20.0]), [np.full(3, 100), np.array([11, 11, 1]), np.zeros(3)])
    seen = Seen(
        np.array([0.5, np.nan, 22.0]), np.array([1.5, np.nan, 22.0]), np.array([0.0]), np.array([1.0])
    )
    found = {limit: missed.tolist() for limit, missed in days.over_bounds(arrivals, seen, asked).items()}
    ttft, tpot = list(found)[:2]
    assert found[ttft] == [False, True, True] and found[tpot] == [True, True, False]
    assert found["joint_p90"] == [True, True, True]


def test_node_hours_are_those_of_the_whole_fleet() -> None:
    asked = load([])
    due_s = np.linspace(0, DAY_S - 1, 500)
    arrivals = DayArrivals(due_s, [np.full(500, 10), np.full(500, 5), np.zeros(500)])
    seen = Seen(due_s + 0.1, due_s + 0.2, np.array([0.0, DAY_S / 2]), np.array([4.0, 2.0]))
    fleet = SimulatedFleet(4, 0.5, (4,) * 24, 600.0, 3600.0)
    run = days._counted(arrivals, seen, asked, fleet, 7200.0)
    assert run.figures[elastic.NODE_HOURS] == pytest.approx((4 * 12 + 2 * 12) / 0.5)
    assert run.figures[elastic.EITHER] == 0 and run.figures[elastic.MINUTES] == 0
    assert run.nodes[0] == pytest.approx(8) and run.nodes[-1] == pytest.approx(4)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["workload=chat_sessions"], "histories"),
        (["workload.arrivals.kind=constant"], "kind=constant"),
        (["slo.itl_p99_ms=300"], "gaps between tokens"),
    ],
)
def test_what_the_day_does_not_know_is_refused(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        days.refuse(load(words))
