"""analysis.capacity.growing_queue: answers that keep up with the requests, and answers that do not."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.growing_queue import falls_behind
from analysis.rows import records
from loadgen.traffic.schedule import NS


def rows(due_s: Any, e2e_s: Any, status: str = "ok") -> pa.Table:
    """Requests due then, each of which takes so long; what has not ended after 200 s is in flight."""
    due, e2e = np.broadcast_arrays(np.asarray(due_s, float), np.asarray(e2e_s, float))
    ended = due + e2e <= 200
    columns: dict[str, Any] = {name: pa.nulls(len(due), kind) for name, kind in _types()}
    columns["due_ns"] = pa.array((due * NS).astype(np.int64))
    columns["end_offset_ns"] = pa.array((e2e * NS).astype(np.int64), mask=~ended)
    columns["status"] = pa.array([status if over else "pending" for over in ended])
    return pa.table(columns).cast(records.PROGRESS)


def _types() -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in records.PROGRESS]


def arrivals(qps: float, seed: int) -> Any:
    chance = np.random.default_rng(seed)
    return np.sort(chance.uniform(0, 200, chance.poisson(200 * qps)))


@pytest.mark.parametrize("qps", [0.5, 4.0, 200.0])
def test_answers_of_any_length_keep_up_once_the_service_is_full(qps: float) -> None:
    late = [falls_behind(rows(arrivals(qps, seed), 40.0), 100 * NS, 200 * NS) for seed in range(20)]
    assert sum(late) <= 4  # chance: one in twenty


def test_a_service_that_fills_falls_behind() -> None:
    due_s = arrivals(4.0, 1)
    assert falls_behind(rows(due_s, 40.0), 15 * NS, 75 * NS)
    # The longer a request came after the first, the longer its answer takes: an overload never fills.
    assert falls_behind(rows(due_s, 10 + 0.4 * due_s), 100 * NS, 200 * NS)
    assert not falls_behind(rows(due_s, 10.0), 100 * NS, 200 * NS)


def test_without_one_answer_nothing_keeps_up() -> None:
    assert falls_behind(rows([150.0], 100.0), 100 * NS, 200 * NS)
    assert falls_behind(rows([], 1.0), 100 * NS, 200 * NS)


def test_a_failure_is_an_end() -> None:
    assert not falls_behind(rows(arrivals(4.0, 1), 0.1, status="timeout"), 100 * NS, 200 * NS)
