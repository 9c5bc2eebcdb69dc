"""The answer of the quality gate: whether B answers as A does, with the evidence."""

from analysis.quality.gate import GateVerdict, MeanInterval, PairFigures, any_failed
from analysis.stats.estimate import UNKNOWN, number
from analysis.views.shown import Fact, Table

WORST_NAMED = 3
"""Prompts that stand among the facts; study.json has more."""
NO_SIGN = "Divergence has no sign: it says that answers differ, and A decides what is right."
ANSWERS = {
    "SAME": "B answers as A does, within the margins",
    "DEGRADED": "B's answers differ from A's by more than a margin",
    "UNDECIDED": "neither is shown",
}


def headline(gate: GateVerdict) -> str:
    """The answer in a line, with the number of prompts that it rests on."""
    return f"{ANSWERS[gate.verdict]} ({gate.compared} prompts compared)"


def facts(gate: GateVerdict) -> list[Fact]:
    """The excess of B beyond A's own repeat with its intervals, and the prompts that differ most."""
    out = [
        (
            "mean excess divergence",
            f"{gate.excess_nats:.4f} nats per token, 95 % interval"
            f" [{gate.nats.low:.4f}, {gate.nats.high:.4f}], margin {gate.nats.margin:g}",
        ),
        (
            "broken prompts beyond A's own repeat",
            f"{100 * gate.excess_broken:.2f} %, {_shares(gate.broken)}",
        ),
        ("first other token", f"{_flips('A again', gate.again)}; {_flips('B', gate.candidate)}"),
    ]
    failed = gate.failed
    if any_failed(failed):
        sides = f"{failed.base} by A, {failed.again} by A again, {failed.candidate} by B"
        out.append(("unanswered", f"{sides}; {_shares(gate.unanswered)}"))
    if gate.verdict != "SAME" and gate.worst:
        worst = ", ".join(f"{one.prompt} ({one.most_nats:.2f} nats)" for one in gate.worst[:WORST_NAMED])
        out.append(("prompts with the largest divergence at one position", worst))
    return out


def tables(gate: GateVerdict) -> tuple[Table, Table]:
    """The intervals, and each side beside A's first answers."""
    return _intervals(gate), _pairs(gate)


def _intervals(gate: GateVerdict) -> Table:
    rows = (
        ("mean excess divergence, nats per token", gate.excess_nats, gate.nats, 1.0),
        ("excess of broken prompts, %", 100 * gate.excess_broken, gate.broken, 100.0),
        ("excess of unanswered prompts, %", None, gate.unanswered, 100.0),
    )
    return Table(
        f"{gate.verdict} after {gate.prompts} prompts: B beyond A's own repeat",
        ("quantity", "estimate", "lower end", "upper end", "margin", "shown"),
        tuple(_interval(*row) for row in rows),
        note=f"The ends hold at every moment (95 %). {NO_SIGN}",
    )


def _interval(name: str, estimate: float | None, ends: MeanInterval, unit: float) -> tuple[str, ...]:
    shown = "below the margin" if ends.is_below else "above the margin" if ends.is_above else "neither"
    known = UNKNOWN if estimate is None else number(estimate)
    return name, known, *(number(unit * end) for end in (ends.low, ends.high, ends.margin)), shown


def _pairs(gate: GateVerdict) -> Table:
    failed = gate.failed
    rows = (("A again", gate.again, failed.again), ("B", gate.candidate, failed.candidate))
    heads = "answers", "mean divergence, nats", "broken prompts", "other tokens", "positions at risk"
    return Table(
        "Each beside A's first answers",
        (*heads, "unanswered"),
        tuple((name, *_pair(pair), str(missing)) for name, pair, missing in rows),
        note=f"{gate.compared} prompts were answered by all; {failed.base} not by A the first time.",
    )


def _pair(pair: PairFigures) -> tuple[str, ...]:
    return number(pair.mean_nats), str(pair.broken), str(pair.flips), str(pair.at_risk)


def _shares(one: MeanInterval) -> str:
    low, high = 100 * one.low, 100 * one.high
    return f"95 % interval [{low:.2f}, {high:.2f}] %, margin {100 * one.margin:g} %"


def _flips(name: str, pair: PairFigures) -> str:
    return f"{name} {pair.flips} in {pair.at_risk} positions at risk"
