"""analysis.quality.answer_file: positions are compared up to and including the first token that differs."""

import math

import pytest

from analysis.quality.answer_file import Answer, compare, evidence
from tests.support.quality.answers import answer


def test_answers_are_compared_up_to_the_first_other_token() -> None:
    base, other = answer("abcde"), answer("abXde")
    comparison = compare(base, other)
    assert comparison.positions == 3 and comparison.flipped
    assert comparison.base_tokens == base.tokens[:3] and comparison.tokens == other.tokens[:3]
    assert comparison.nats[:2] == (0.0, 0.0) and comparison.nats[2] == comparison.most_nats > 0.1
    assert comparison.mean_nats == pytest.approx(comparison.nats[2] / 3)


def test_the_same_answer_is_compared_as_a_whole() -> None:
    comparison = compare(answer("abcde"), answer("abcde"))
    assert comparison.positions == 5 and not comparison.flipped and comparison.most_nats == 0.0


def test_what_differs_after_the_first_other_token_counts_for_nothing() -> None:
    assert compare(answer("abcde"), answer("aXcde")) == compare(answer("abcde"), answer("aXYZ!"))


def test_a_side_that_is_missing_failed() -> None:
    whole = {"base": answer("abc"), "again": answer("abc"), "candidate": answer("abX")}
    assert evidence(3, whole).unanswered == ()
    result = evidence(3, {"base": whole["base"], "again": whole["again"]})
    assert result.candidate is None and result.again is not None and result.unanswered == ("candidate",)
    result = evidence(3, {"again": whole["again"], "candidate": whole["candidate"]})
    assert result.again is None and result.candidate is None and result.unanswered == ("base",)


@pytest.mark.parametrize(
    "tokens, alternatives",
    [((), ()), ((1, 2), ({1: -0.1},)), ((1,), ({},)), ((1,), ({1: math.nan},)), ((1,), ({1: 0.7},))],
)
def test_answers_without_log_probabilities_are_refused(
    tokens: tuple[int, ...], alternatives: tuple[dict[int, float], ...]
) -> None:
    with pytest.raises(ValueError, match="alternatives|log probability"):
        Answer(tokens, alternatives)
