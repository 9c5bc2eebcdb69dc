"""serve_apps/engine_model/engine/steps.py: ranks step together; vLLM spreads requests alike."""

from dataclasses import replace

import pytest

from conf.specs.experiment import SimulatedEngine
from serve_apps.engine_model import Engine, EngineKind, GenerateRequest
from serve_apps.engine_model.cost.step_time import Batch, ranks_time
from serve_apps.engine_model.engine import steps
from serve_apps.engine_model.engine.engine import QueueFull, RequestState
from serve_apps.engine_model.engine.kinds import empty_arrays
from tests.support.virtual.engines import drain, ranks_step_s, specs

DP8 = specs(layout="dp8_attention_ep8")
PARTS = DP8.model, DP8.hardware, DP8.layout


def group(**changes: object) -> Engine:
    return Engine(EngineKind.of(SimulatedEngine(**changes), *PARTS))  # type: ignore[arg-type]


def rank_of(served: Engine, state: RequestState) -> int:
    return int(served.arrays.requests["engine"][state.row])


def test_all_ranks_end_a_step_together_which_lasts_as_long_as_the_slowest() -> None:
    served = group()
    long, short = (served.add(GenerateRequest(tokens, 2), 0.0) for tokens in (8000, 100))
    assert {rank_of(served, it) for it in (long, short)} == {0, 1}
    now_s = served.ready_s()
    later_s = now_s + 1.0  # both have passed the front end
    end_s = served.begin_step(later_s)
    assert end_s is not None and {it.request_id for it in served.emitting()} == {0, 1}
    served.end_step()
    assert long.first_token_s == short.first_token_s == end_s
    batches: list[Batch | None] = [None] * 8
    for rank, tokens in enumerate((8000, 100)):
        batches[rank] = Batch(sequences=1)
        batches[rank].add_chunk(tokens, 0)  # type: ignore[union-attr]
    time = ranks_time(*PARTS)
    assert end_s - later_s == pytest.approx(ranks_step_s(time, batches))
    alone = time.own.duration_s(batches[0])  # type: ignore[arg-type]
    assert alone < end_s - later_s < alone * 1.2


def test_a_burst_is_spread_evenly_and_every_token_is_emitted_once() -> None:
    served = group()
    states = [served.add(GenerateRequest(500, 7), 0.0) for _ in range(24)]
    assert sorted(rank_of(served, state) for state in states) == sorted(list(range(8)) * 3)
    drain(served)
    assert all(state.finished for state in states) and served.running == served.waiting == 0
    assert served.total("generation_tokens") == 24 * 7
    assert served.total("prompt_tokens") == 24 * 500


def test_limits_and_the_cache_are_those_of_one_rank() -> None:
    served = group(max_num_seqs=1, num_gpu_blocks=100)
    for _ in range(16):
        served.add(GenerateRequest(160, 3, hashes=tuple(range(10))), 0.0)
    served.begin_step(10.0)
    assert served.running == 8 and served.waiting == 8
    served.end_step()
    drain(served)
    # The second request of each rank finds the prefix that the first has left there, less its last block.
    assert served.total("prefix_hits") == 8 * 144
    with pytest.raises(ValueError, match="the engine holds 1600"):
        served.add(GenerateRequest(1700, 1), 20.0)


def test_what_is_aborted_or_refused_is_in_flight_nowhere() -> None:
    served = group(max_num_queued_reqs=1)
    states = [served.add(GenerateRequest(100, 50), 0.0) for _ in range(8)]
    with pytest.raises(QueueFull):
        served.add(GenerateRequest(100, 50), 0.0)
    rank = rank_of(served, states[5])
    served.abort(states[5])
    served.abort(states[5])
    later = served.add(GenerateRequest(100, 50), 0.15)  # after the next publication of the counts
    assert rank_of(served, later) == rank
    served.abort(later)
    drain(served)
    assert served.total("generation_tokens") == 7 * 50


class Ranks:
    """vLLM's choice of a rank, over counts that a test makes up."""

    def __init__(self, ranks: int) -> None:
        layout = replace(DP8.layout, data_parallel=ranks, tensor_parallel=8 // ranks)
        kind = EngineKind.of(SimulatedEngine(), DP8.model, DP8.hardware, layout)
        self._arrays, _ = empty_arrays([(kind, 1)], [0])
        self.engines = self._arrays.engines

    def choose(self) -> int:
        rank = int(steps.choose_rank(self._arrays.address, 0, 0.0))
        self.engines["open"][rank] += 1
        return rank

    def publish(self, counts: list[tuple[int, int, float]]) -> None:
        columns = map(list, zip(*counts, strict=True))
        self.engines["told_waiting"], self.engines["told_running"], self.engines["told_usage"] = columns
        self.engines["sent_since"] = 0


def test_a_request_goes_where_the_fewest_are_in_flight_and_ties_go_round() -> None:
    ranks = Ranks(4)
    assert [ranks.choose() for _ in range(6)] == [0, 1, 2, 3, 0, 1]
    ranks.engines["open"] = 0
    ranks.publish([(0, 0, 0.0)] * 4)
    assert ranks.choose() == 2, "from where the last one went on"
    ranks.engines["open"] = [2, 2, 0, 1]
    ranks.publish([(0, 2, 0.1)] * 2 + [(0, 0, 0.1), (0, 1, 0.1)])
    assert ranks.choose() == 2


def test_counts_that_were_published_hold_until_the_next_time() -> None:
    """A rank whose requests have just ended still looks busy; a queue beside a full cache looks longer."""
    ranks = Ranks(2)
    ranks.publish([(0, 3, 0.2), (0, 1, 0.2)])
    assert ranks.choose() == 1
    ranks.engines["open"] = [5, 6]
    ranks.publish([(2, 3, 0.9), (0, 6, 0.9)])
    assert ranks.choose() == 1


def test_a_model_without_experts_has_no_ranks_that_step_together() -> None:
    dense = specs("llama31_405b_fp8", layout="dp1_tp8").model
    with pytest.raises(ValueError, match="replicas_per_node"):
        EngineKind.of(SimulatedEngine(), dense, DP8.hardware, DP8.layout)
