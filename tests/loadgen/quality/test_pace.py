"""loadgen/quality/asking.py: questions and the load beside them are together the work of the asked rate."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conf import load
from loadgen.quality import asking

FAKE = load(["cluster.session=fake", "quality.load=2", "quality.answer_tokens=32"])


@given(st.floats(0.01, 500), st.integers(1, 4), st.integers(1, 2000))
def test_questions_and_load_together_are_the_tokens_of_the_rate(
    rate_qps: float, nodes: int, tokens: int
) -> None:
    asked = replace(
        FAKE,
        cluster=replace(FAKE.cluster, nodes=nodes),
        quality=replace(FAKE.quality, load=str(rate_qps), prompt_tokens=tokens),
    )
    found = asking.gate_pace(asked)
    assert found.per_s is not None and 0 < found.per_s <= asking.MOST_PER_S
    request = asked.workload.input_tokens.mean + asked.workload.output_tokens.mean
    offered = nodes * found.load_qps * request + found.per_s * (tokens + 32)
    assert offered == pytest.approx(nodes * asked.quality.rate_qps * request)
    assert found.load_qps >= (1 - asking.QUESTION_SHARE) * asked.quality.rate_qps * (1 - 1e-9)


def test_an_idle_service_has_a_few_questions_in_flight_and_no_other_load() -> None:
    asked = load(["quality.load=idle"])
    assert asking.gate_pace(asked) == asking.Pace(0.0, None, asking.IDLE_IN_FLIGHT)
    assert asking.longest_s(asked, asking.gate_pace(asked)) is None


def test_the_longest_time_is_that_of_three_answers_to_every_prompt() -> None:
    asked = load(["quality.load=2", "quality.prompts=600"])
    found = asking.gate_pace(asked)
    assert found.per_s
    assert asking.longest_s(asked, found) == pytest.approx(1800 / found.per_s)
