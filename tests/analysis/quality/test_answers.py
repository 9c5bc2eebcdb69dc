"""analysis.quality.answers: positions are compared up to and including the first token that differs."""

import math

import pytest

from analysis.quality.answers import Answer, compare, evidence
from tests.support.quality.answers import answer


def test_answers_are_compared_up_to_the_first_other_token() -> None:
    base, other = answer("abcde"), answer("abXde")
    found = compare(base, other)
    assert found.positions == 3 and found.flipped
    assert found.base_tokens == base.tokens[:3] and found.tokens == other.tokens[:3]
    assert found.nats[:2] == (0.0, 0.0) and found.nats[2] == found.most_nats > 0.1
    assert found.mean_nats == pytest.approx(found.nats[2] / 3)


def test_the_same_answer_is_compared_as_a_whole() -> None:
    found = compare(answer("abcde"), answer("abcde"))
    assert found.positions == 5 and not found.flipped and found.most_nats == 0.0


def test_what_differs_after_the_first_other_token_counts_for_nothing() -> None:
    assert compare(answer("abcde"), answer("aXcde")) == compare(answer("abcde"), answer("aXYZ!"))


def test_a_side_that_is_missing_failed() -> None:
    whole = {"base": answer("abc"), "again": answer("abc"), "candidate": answer("abX")}
    assert evidence(3, whole).unanswered == ()
    found = evidence(3, {"base": whole["base"], "again": whole["again"]})
    assert found.candidate is None and found.again is not None and found.unanswered == ("candidate",)
    found = evidence(3, {"again": whole["again"], "candidate": whole["candidate"]})
    assert found.again is None and found.candidate is None and found.unanswered == ("base",)


@pytest.mark.parametrize(
    "tokens, alternatives",
    [((), ()), ((1, 2), ({1: -0.1},)), ((1,), ({},)), ((1,), ({1: math.nan},)), ((1,), ({1: 0.7},))],
)
def test_answers_without_log_probabilities_are_refused(
    tokens: tuple[int, ...], alternatives: tuple[dict[int, float], ...]
) -> None:
    with pytest.raises(ValueError, match="alternatives|log probability"):
        Answer(tokens, alternatives)
