"""The model's choice of a data-parallel rank against vLLM's own balancer, on the same counts."""

import inspect
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from serve_apps.engine_model.scheduler.lockstep import RankBalancer

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

RANKS = 8


def front_end() -> Any:
    """vLLM's client without its processes: the only front end of its engines.

    Skips where the balancer is an older one, which counts waiting requests four times.
    """
    core_client = pytest.importorskip("vllm.v1.engine.core_client")
    if "kv_cache_usage" not in inspect.getsource(core_client.DPLBAsyncMPClient.get_core_engine_for_request):
        pytest.skip("this vLLM chooses ranks by another rule")
    client = object.__new__(core_client.DPLBAsyncMPClient)
    client.client_count, client.eng_start_index = 1, 0
    client.reqs_in_flight, client.engine_inflight = {}, Counter()
    client.core_engines = [bytes([rank]) for rank in range(RANKS)]
    client.lb_engines = [[0, 0, 0.0] for _ in range(RANKS)]
    return client


@pytest.mark.parametrize("seed", range(5))
def test_requests_go_to_the_ranks_that_vllm_takes(seed: int) -> None:
    rng, client, balancer = np.random.default_rng(seed), front_end(), RankBalancer(RANKS)
    taken: list[int] = []
    for number in range(400):
        if rng.random() < 0.1:  # the counts of a while ago are published
            counts = [
                (int(rng.integers(5)), int(rng.integers(20)), float(rng.random())) for _ in range(RANKS)
            ]
            balancer.publish(number * 1.0, counts)
            client.lb_engines = [list(each) for each in counts]
        while taken and rng.random() < 0.45:  # some end
            rank = taken.pop(int(rng.integers(len(taken))))
            balancer.in_flight[rank] -= 1
            client.engine_inflight[client.core_engines[rank]] -= 1
        asked = SimpleNamespace(request_id=f"{number}", data_parallel_rank=None, pooling_params=None)
        theirs = client.core_engines.index(client.get_core_engine_for_request(asked))
        assert balancer.choose() == theirs, number
        taken.append(theirs)
