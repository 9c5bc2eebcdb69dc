"""loadgen/cli/engine_model.py: the uncertainty of constants that the end of a simulated sweep stores."""

import pytest

from analysis.stats.estimate import Estimate
from conf import load
from loadgen.cli import engine_model


def ratio(*words: str) -> tuple[Estimate | str, list[str]]:
    told: list[str] = []
    found = engine_model.constants_ratio(load(words), lambda kind, text: told.append(f"{kind}: {text}"))
    return found, told


@pytest.mark.slow
def test_the_constants_of_the_engine_model_spread_the_capacity_around_one() -> None:
    found, told = ratio()
    assert isinstance(found, Estimate)
    assert 0.6 < found.low < found.certified < 0.95 and 1.05 < found.high < 1.6
    assert len(told) == 1 and told[0].startswith("constants: the engine model draws its constants")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["engine=vllm_emulated"], "the engine model answers for engine=simulated, not vllm_emulated"),
        (["engine.max_num_queued_reqs=8"], "does not model refused requests"),
        (["layout=1p1d_tp4_ep4", "slo.queue_p90_ms=50"], "no queue time of layout=1p1d_tp4_ep4"),
        pytest.param(
            ["search.highest_qps=0.2"], "the engine model finds no interval", marks=pytest.mark.slow
        ),
    ],
)
def test_where_the_engine_model_has_no_answer_it_says_why(words: list[str], why: str) -> None:
    found, _ = ratio(*words)
    assert isinstance(found, str) and why in found and "\n" not in found
