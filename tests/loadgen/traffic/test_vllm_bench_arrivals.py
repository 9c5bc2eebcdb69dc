"""loadgen/traffic/processes.py: arrivals of `vllm bench serve`, held to times of its own generator."""

import numpy as np
import pytest

from loadgen.traffic.processes import bench_arrivals_s
from tests.support.words.vllm_bench_times import GIVEN


@pytest.mark.parametrize("asked", GIVEN)
def test_arrivals_are_those_of_the_tool(asked: tuple[int, float, int, float]) -> None:
    np.testing.assert_allclose(bench_arrivals_s(*asked), GIVEN[asked], rtol=1e-12)


def test_the_last_request_is_due_after_as_many_gaps_as_requests() -> None:
    due_s = bench_arrivals_s(100, 8.0)
    assert due_s[-1] == pytest.approx(100 / 8)
    assert (np.diff(due_s) > 0).all() and due_s[0] > 0


def test_the_global_generator_stays_as_it_is() -> None:
    np.random.seed(5)  # noqa: NPY002  # that generator is what must not move
    before = np.random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    bench_arrivals_s(10, 1.0)
    assert np.random.random() == before  # noqa: NPY002


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize(
    "asked", [(0, 8.0), (5, 0.0), (5, np.inf), (5, 8.0, -1), (5, 8.0, 2**32), (5, 8.0, 0, 0.0)]
)
def test_what_the_tool_could_not_draw_is_refused(asked: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="positive and finite|seed="):
        bench_arrivals_s(*asked)
