"""serve_apps/engine_model/service/elastic.py: engines that come and go on the virtual clock."""

import numpy as np
import pytest

from conf import load
from serve_apps.engine_model.compiled.fast_engine import FastSpec, UnsupportedByFastPath
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.elastic import ElasticTimes, Lifecycle, Wanted, serve_elastic
from serve_apps.engine_model.service.routed import Replicas, Requests, serve_open

ASKED = load(["layout=dp2_tp4_ep4"])
SPEC = FastSpec.of(ASKED.engine, ASKED.model, ASKED.hardware, ASKED.layout)  # type: ignore[arg-type]


def requests(count: int = 600, rate_qps: float = 6.0) -> Requests:
    rng = np.random.default_rng(3)
    sent_s = np.cumsum(rng.exponential(1 / rate_qps, count))
    columns = rng.integers(100, 6000, count), rng.integers(2, 200, count), np.zeros(count, np.int64)
    return Requests(sent_s, columns)


def steady(engines: int) -> Wanted:
    return lambda now_s, target, seen: engines


def served(life: Lifecycle, wanted: Wanted, policy: str = "leastconn") -> ElasticTimes:
    return serve_elastic(SPEC, requests(), policy, life, lambda: wanted, seed=0)


@pytest.mark.parametrize("policy", ["leastconn", "roundrobin"])
def test_a_fleet_that_stays_is_the_fixed_service(policy: str) -> None:
    life = Lifecycle(4, 2, 4, 60.0, 7.0)
    seen = served(life, steady(4), policy)
    fixed = serve_open(SPEC, requests(), Replicas(4, Balance(policy)))
    assert seen.first_s == pytest.approx(fixed.first_token_s)
    assert seen.last_s == pytest.approx(fixed.last_token_s)
    assert seen.nodes.tolist() == [2.0] and seen.serving.tolist() == [4.0]


def test_how_often_the_fleet_is_looked_at_changes_nothing_else() -> None:
    often, seldom = (served(Lifecycle(4, 2, 4, 60.0, step_s), steady(4)) for step_s in (0.5, 13.0))
    assert often.last_s == pytest.approx(seldom.last_s)


def test_a_lost_node_loses_what_is_on_it_and_is_replaced() -> None:
    life = Lifecycle(6, 2, 4, 20.0, 1.0, lost_s=40.0)
    seen = served(life, steady(4))
    failed = np.isnan(seen.last_s)
    sent_s = requests().sent_s
    assert 0 < failed.sum() < 60 and sent_s[failed].max() <= 40.0
    assert seen.serving[seen.at_s < 40].min() == 4 and seen.serving[seen.at_s >= 40].min() == 2
    assert seen.serving[-1] == 4 and 60.0 <= seen.at_s[-1] <= 62.0  # 20 s after the loss


def test_a_lost_node_of_a_fixed_fleet_stays_lost() -> None:
    seen = served(Lifecycle(4, 2, 4, 20.0, 1.0, lost_s=40.0, replaced=False), steady(4))
    assert seen.serving[-1] == 2 and seen.nodes[-1] == 1


def test_an_engine_that_goes_ends_its_requests_first() -> None:
    seen = served(Lifecycle(4, 2, 4, 20.0, 1.0), lambda now_s, target, seen: 4 if now_s < 30 else 2)
    assert not np.isnan(seen.last_s).any()
    assert seen.serving[-1] == 2 and seen.nodes[-1] == 1


def test_a_new_engine_serves_after_its_start_alone() -> None:
    seen = served(Lifecycle(4, 2, 2, 20.0, 1.0), lambda now_s, target, seen: 2 if now_s < 30 else 4)
    assert seen.at_s[seen.nodes == 2][0] == 30.0  # paid for from the request on
    assert seen.at_s[seen.serving == 4][0] == 50.0


def test_what_no_fleet_knows_is_refused() -> None:
    with pytest.raises(UnsupportedByFastPath, match="keeps sessions"):
        served(Lifecycle(4, 2, 4, 60.0, 7.0), steady(4), "consistent_hash")


def test_a_new_engine_does_not_wait_for_the_next_look() -> None:
    seen = served(Lifecycle(4, 2, 2, 20.5, 7.0), lambda now_s, target, seen: 2 if now_s < 28 else 4)
    assert seen.at_s[seen.serving == 4][0] == 48.5
