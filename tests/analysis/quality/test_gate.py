"""analysis.quality.gate: what decides, what keeps it open, and that the order of arrival never matters."""

import random
from dataclasses import replace
from functools import cache

import pytest

from analysis.quality.answers import PromptEvidence, Side
from analysis.quality.gate import Gate, GateVerdict, fewest_prompts, judge
from analysis.results.json_border import from_tree, to_tree
from conf.specs.search import Quality
from tests.support.quality.answers import prompt, prompts

RULE = Quality()


@cache
def judged(seed: int, excess: float = 0.0) -> GateVerdict:
    """The verdict of as many prompts as the budget has."""
    return judge(prompts(768, seed, excess), RULE)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("excess, verdict", [(0.0, "SAME"), (0.03, "DEGRADED"), (0.011, "UNDECIDED")])
def test_the_verdict_follows_the_excess(excess: float, verdict: str, seed: int) -> None:
    found = judged(seed, excess)
    assert found.verdict == verdict
    assert found.nats.low < excess < found.nats.high
    assert found.excess_nats == pytest.approx(excess, abs=0.004)


def test_any_order_of_arrival_gives_the_verdict_of_the_file() -> None:
    found = prompts(300, 2, 0.011)
    whole = judge(found, RULE)
    random.Random(3).shuffle(found)
    gate = Gate(RULE)
    for one in found:
        gate.add(one)
    assert gate.verdict() == whole
    assert whole.prompts + whole.unused == 300


def test_what_comes_after_the_decision_does_not_count() -> None:
    decided = judge(prompts(440, 1), RULE)
    worse = [replace(one, prompt=one.prompt + 440) for one in prompts(300, 1, 0.3)]
    found = judge([*prompts(440, 1), *worse], RULE)
    assert found == replace(decided, unused=decided.unused + 300) and found.verdict == "SAME"


def test_a_missing_number_holds_back_those_behind_it() -> None:
    found = [one for one in prompts(100, 1) if one.prompt != 40]
    gate = Gate(RULE)
    for one in found:
        gate.add(one)
    assert (gate.verdict().prompts, gate.verdict().unused) == (40, 59)
    gate.add(prompt(40, 0.0, 0.0))
    assert (gate.verdict().prompts, gate.verdict().unused) == (100, 0)


def test_the_budget_ends_a_gate_undecided() -> None:
    found = judge(prompts(200, 1), replace(RULE, prompts=150))
    assert (found.verdict, found.prompts, found.unused) == ("UNDECIDED", 150, 50)
    assert any("mean excess divergence" in line for line in found.why)


def test_broken_prompts_degrade_though_the_mean_is_small() -> None:
    """3 % of the prompts break at one position of 32."""
    rule = replace(RULE, prompts=3000)
    rare = [prompt(one, 0.001, 0.21 if one % 33 == 7 else 0.0) for one in range(3000)]
    found = judge(rare, rule)
    assert found.verdict == "DEGRADED" and found.broken.is_above and not found.nats.is_above
    assert len(found.why) == 1 and "broken" in found.why[0]
    assert found.candidate.broken > 0 == found.again.broken


def test_prompts_that_the_repeat_breaks_as_often_are_noise() -> None:
    def broken(one: int, of: int) -> float:
        return 0.25 if one % 50 == of else 0.0

    found = judge([prompt(one, broken(one, 3), broken(one, 28)) for one in range(768)], RULE)
    assert found.verdict == "UNDECIDED" and found.excess_broken == pytest.approx(0.0, abs=0.003)
    assert found.broken.low < 0 < found.broken.high


def failing(count: int, of: dict[int, tuple[Side, ...]]) -> list[PromptEvidence]:
    return [prompt(one, 0.002, 0.002, *of.get(one, ())) for one in range(count)]


def test_a_candidate_that_leaves_prompts_unanswered_is_not_the_same() -> None:
    failed: dict[int, tuple[Side, ...]] = dict.fromkeys(range(5, 768, 100), ("candidate",))
    found = judge(failing(768, failed), RULE)
    assert found.verdict == "UNDECIDED" and found.failed.candidate == len(failed) == 8
    assert found.nats.is_below and found.broken.is_below and not found.unanswered.is_below
    assert "unanswered" in found.why[0] and "8 by the candidate" in found.why[-1]


def test_a_candidate_that_answers_next_to_nothing_voids_the_gate_at_once() -> None:
    found = judge(failing(200, dict.fromkeys(range(200), ("candidate",))), RULE)
    assert found.verdict == "UNDECIDED" and found.prompts < 20 and found.compared == 0
    assert found.unanswered.is_above


def test_failures_of_the_base_are_counted_and_say_nothing() -> None:
    found = judge(failing(500, {3: ("base",), 4: ("base", "candidate"), 9: ("base", "again")}), RULE)
    assert (found.failed.base, found.failed.again, found.failed.candidate) == (3, 1, 1)
    assert found.verdict == "UNDECIDED" or found.compared == found.prompts - 3


def test_failures_that_the_repeat_has_too_do_not_hide_broken_answers() -> None:
    """The repeat fails as often as the candidate breaks: the difference of both would be none."""
    found = judge(
        [
            prompt(one, 0.0, 0.3 if one % 40 == 5 else 0.0, *(("again",) if one % 40 == 17 else ()))
            for one in range(2000)
        ],
        replace(RULE, prompts=2000),
    )
    assert found.verdict != "SAME" and not found.broken.is_below


def test_what_the_evidence_says_is_counted() -> None:
    found = judge(
        [prompt(0, 0.01, 0.02), prompt(1, 0.01, 0.3, flipped=True), prompt(2, 0.0, 0.0, "again")], RULE
    )
    assert found.candidate.flips == 1 and found.candidate.at_risk == found.again.at_risk == 8
    assert (found.candidate.flips, found.candidate.at_risk, found.again.flips) == (1, 8, 0)
    assert found.candidate.mean_nats == pytest.approx(0.16) and found.candidate.broken == 1
    assert [one.prompt for one in found.worst] == [1, 0]
    assert [one.position for one in found.by_position] == [0, 1, 2, 3]
    assert found.by_position[3].candidate_nats == pytest.approx(0.16)
    assert (found.prompts, found.compared) == (3, 2)


@pytest.mark.parametrize("margin_broken", [0.01, 0.05])
def test_the_fewest_prompts_are_enough_when_nothing_differs(margin_broken: float) -> None:
    rule = replace(RULE, margin_broken=margin_broken)
    found = judge([prompt(one, 0.0, 0.0) for one in range(600)], rule)
    assert found.verdict == "SAME" and found.prompts == fewest_prompts(rule)
    assert fewest_prompts(rule) == (432 if margin_broken == 0.01 else 299)


def test_a_gate_without_a_prompt_is_undecided() -> None:
    found = judge([], RULE)
    assert found.verdict == "UNDECIDED" and found.by_position == () and found.worst == ()
    assert found.excess_broken == 0.0


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_prompt_twice_or_without_a_number_is_refused(number: int) -> None:
    gate = Gate(RULE)
    gate.add(prompt(0, 0.0, 0.0))
    gate.add(prompt(1, 0.0, 0.0))
    with pytest.raises(ValueError, match="twice, or has no number"):
        gate.add(prompt(number, 0.0, 0.0))


def test_a_verdict_survives_a_file() -> None:
    found = judge(prompts(50, 1, 0.02), RULE)
    assert from_tree(GateVerdict, to_tree(found), "quality.json") == found
