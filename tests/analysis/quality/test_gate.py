"""analysis.quality.gate: what decides, what keeps it open, and that the order of arrival never matters."""

import random
from dataclasses import replace
from functools import cache

import pytest

from analysis.quality.answer_file import PromptEvidence, Side
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
    result = prompts(300, 2, 0.011)
    whole = judge(result, RULE)
    random.Random(3).shuffle(result)
    gate = Gate(RULE)
    for one in result:
        gate.add(one)
    assert gate.verdict() == whole
    assert whole.prompts + whole.unused == 300


def test_what_comes_after_the_decision_does_not_count() -> None:
    decided = judge(prompts(440, 1), RULE)
    worse = [replace(prompt, prompt=prompt.prompt + 440) for prompt in prompts(300, 1, 0.3)]
    verdict = judge([*prompts(440, 1), *worse], RULE)
    assert verdict == replace(decided, unused=decided.unused + 300) and verdict.verdict == "SAME"


def test_a_missing_number_holds_back_those_behind_it() -> None:
    result = [one for one in prompts(100, 1) if one.prompt != 40]
    gate = Gate(RULE)
    for one in result:
        gate.add(one)
    assert (gate.verdict().prompts, gate.verdict().unused) == (40, 59)
    gate.add(prompt(40, 0.0, 0.0))
    assert (gate.verdict().prompts, gate.verdict().unused) == (100, 0)


def test_the_budget_ends_a_gate_undecided() -> None:
    verdict = judge(prompts(200, 1), replace(RULE, prompts=150))
    assert (verdict.verdict, verdict.prompts, verdict.unused) == ("UNDECIDED", 150, 50)
    assert any("mean excess divergence" in line for line in verdict.why)


def test_broken_prompts_degrade_though_the_mean_is_small() -> None:
    """3 % of the prompts break at one position of 32."""
    rule = replace(RULE, prompts=3000)
    rare = [prompt(one, 0.001, 0.21 if one % 33 == 7 else 0.0) for one in range(3000)]
    verdict = judge(rare, rule)
    assert verdict.verdict == "DEGRADED" and verdict.broken.is_above and not verdict.nats.is_above
    assert len(verdict.why) == 1 and "broken" in verdict.why[0]
    assert verdict.candidate.broken > 0 == verdict.again.broken


def test_prompts_that_the_repeat_breaks_as_often_are_noise() -> None:
    def broken(one: int, of: int) -> float:
        return 0.25 if one % 50 == of else 0.0

    verdict = judge([prompt(one, broken(one, 3), broken(one, 28)) for one in range(768)], RULE)
    assert verdict.verdict == "UNDECIDED" and verdict.excess_broken == pytest.approx(0.0, abs=0.003)
    assert verdict.broken.low < 0 < verdict.broken.high


def failing(count: int, of: dict[int, tuple[Side, ...]]) -> list[PromptEvidence]:
    return [prompt(one, 0.002, 0.002, *of.get(one, ())) for one in range(count)]


def test_a_candidate_that_leaves_prompts_unanswered_is_not_the_same() -> None:
    failed: dict[int, tuple[Side, ...]] = dict.fromkeys(range(5, 768, 100), ("candidate",))
    verdict = judge(failing(768, failed), RULE)
    assert verdict.verdict == "UNDECIDED" and verdict.failed["candidate"] == len(failed) == 8
    assert verdict.nats.is_below and verdict.broken.is_below and not verdict.unanswered.is_below
    assert "unanswered" in verdict.why[0] and "8 by the candidate" in verdict.why[-1]


def test_a_candidate_that_answers_next_to_nothing_voids_the_gate_at_once() -> None:
    verdict = judge(failing(200, dict.fromkeys(range(200), ("candidate",))), RULE)
    assert verdict.verdict == "UNDECIDED" and verdict.prompts < 20 and verdict.compared == 0
    assert verdict.unanswered.is_above


def test_failures_of_the_base_are_counted_and_say_nothing() -> None:
    verdict = judge(failing(500, {3: ("base",), 4: ("base", "candidate"), 9: ("base", "again")}), RULE)
    assert verdict.failed == {"base": 3, "again": 1, "candidate": 1}
    assert verdict.verdict == "UNDECIDED" or verdict.compared == verdict.prompts - 3


def test_failures_that_the_repeat_has_too_do_not_hide_broken_answers() -> None:
    """The repeat fails as often as the candidate breaks: the difference of both would be none."""
    verdict = judge(
        [
            prompt(one, 0.0, 0.3 if one % 40 == 5 else 0.0, *(("again",) if one % 40 == 17 else ()))
            for one in range(2000)
        ],
        replace(RULE, prompts=2000),
    )
    assert verdict.verdict != "SAME" and not verdict.broken.is_below


def test_what_the_evidence_says_is_counted() -> None:
    verdict = judge(
        [prompt(0, 0.01, 0.02), prompt(1, 0.01, 0.3, flipped=True), prompt(2, 0.0, 0.0, "again")], RULE
    )
    assert verdict.candidate.flips == 1 and verdict.candidate.at_risk == verdict.again.at_risk == 8
    assert (verdict.candidate.flips, verdict.candidate.at_risk, verdict.again.flips) == (1, 8, 0)
    assert verdict.candidate.mean_nats == pytest.approx(0.16) and verdict.candidate.broken == 1
    assert [one.prompt for one in verdict.worst] == [1, 0]
    assert [one.position for one in verdict.by_position] == [0, 1, 2, 3]
    assert verdict.by_position[3].candidate_nats == pytest.approx(0.16)
    assert (verdict.prompts, verdict.compared) == (3, 2)


@pytest.mark.parametrize("margin_broken", [0.01, 0.05])
def test_the_fewest_prompts_are_enough_when_nothing_differs(margin_broken: float) -> None:
    rule = replace(RULE, margin_broken=margin_broken)
    verdict = judge([prompt(one, 0.0, 0.0) for one in range(600)], rule)
    assert verdict.verdict == "SAME" and verdict.prompts == fewest_prompts(rule)
    assert fewest_prompts(rule) == (432 if margin_broken == 0.01 else 299)


def test_a_gate_without_a_prompt_is_undecided() -> None:
    verdict = judge([], RULE)
    assert verdict.verdict == "UNDECIDED" and verdict.by_position == () and verdict.worst == ()
    assert verdict.excess_broken == 0.0


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_prompt_twice_or_without_a_number_is_refused(number: int) -> None:
    gate = Gate(RULE)
    gate.add(prompt(0, 0.0, 0.0))
    gate.add(prompt(1, 0.0, 0.0))
    with pytest.raises(ValueError, match="twice, or has no number"):
        gate.add(prompt(number, 0.0, 0.0))


def test_a_verdict_survives_a_file() -> None:
    verdict = judge(prompts(50, 1, 0.02), RULE)
    assert from_tree(GateVerdict, to_tree(verdict), "quality.json") == verdict
