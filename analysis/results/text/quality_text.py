"""The verdict of the quality gate as a headline and as lines of the screen."""

from analysis.quality.gate_verdict import GateVerdict, MeanInterval, PairFigures
from analysis.results.text import ratio_text
from analysis.results.types.study_verdict import StudyVerdict

WORST_TOLD = 3
"""Prompts that stand on the screen; study.json has more."""


def headline(found: GateVerdict) -> str:
    """The answer in a line, with the evidence it rests on."""
    answers = {
        "SAME": "B answers as A does, within the margins",
        "DEGRADED": "B's answers differ from A's by more than a margin",
        "UNDECIDED": "neither is shown",
    }
    return f"{answers[found.verdict]} ({found.compared} prompts compared)"


def lines(study: StudyVerdict, found: GateVerdict) -> list[str]:
    """The differences from A to B, both intervals, and what is told beside them."""
    out = [
        ratio_text.differing(study) if study.differs else "",
        f"  mean excess divergence {found.excess_nats:.4f} nats per token, {_interval(found.nats, '.4f')}",
        f"  broken prompts beyond A's own repeat {100 * found.excess_broken:.2f} %, {_shares(found.broken)}",
        f"  first other token: {_flips('A again', found.again)}; {_flips('B', found.candidate)}",
    ]
    failed = found.failed
    if failed.base or failed.again or failed.candidate:
        out.append(
            f"  unanswered: {failed.base} by A, {failed.again} by A again, {failed.candidate} by B; "
            f"{_shares(found.unanswered)}"
        )
    if found.verdict != "SAME" and found.worst:
        worst = ", ".join(f"{one.prompt} ({one.most_nats:.2f} nats)" for one in found.worst[:WORST_TOLD])
        out.append(f"  prompts with the largest divergence at one position: {worst}")
    return out


def _interval(one: MeanInterval, form: str) -> str:
    return f"95 % interval [{one.low:{form}}, {one.high:{form}}], margin {one.margin:g}"


def _shares(one: MeanInterval) -> str:
    low, high = 100 * one.low, 100 * one.high
    return f"95 % interval [{low:.2f}, {high:.2f}] %, margin {100 * one.margin:g} %"


def _flips(name: str, pair: PairFigures) -> str:
    return f"{name} {pair.flips} in {pair.at_risk} positions at risk"
