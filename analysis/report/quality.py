"""The quality gate on a study's page: its intervals, its figures, and the worst prompts side by side.

The statistics are those of `analysis.quality`.
"""

from collections.abc import Iterator
from pathlib import Path

from pyarrow import ArrowException

from analysis.figures.gate import GateEvidence, GateIntervals, GatePositions
from analysis.quality import answer_file, evidence_table
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.gate import GateRule
from analysis.quality.gate_verdict import GateVerdict, MeanInterval, PairFigures
from analysis.report import exhibits
from analysis.report.blocks import Block, Missing, Section, Table
from analysis.report.exhibits import Room
from analysis.report.wording import UNKNOWN, figure
from analysis.results.study_folder import Study
from conf import load
from conf.io.one_line import reason

PURPOSE = "Whether the answers are still those of the first part (A)."
NO_SIGN = "Divergence has no sign: it says that answers differ, and A decides what is right."


def sections(found: Study, room: Room) -> list[Section]:
    """The section of a gate; none of another study."""
    verdict = found.verdict.quality
    if not verdict or len(found.verdict.names) < 2:
        return []
    base, name = found.verdict.names[:2]
    blocks = tuple(_blocks(found.path, base, name, verdict, room))
    return [Section(f"quality-{name}", f"Answers of {name} beside {base}", PURPOSE, blocks)]


def _blocks(path: Path, base: str, name: str, verdict: GateVerdict, room: Room) -> Iterator[Block]:
    yield _intervals(verdict)
    yield _pairs(verdict)
    try:
        found = evidence_table.read(path / evidence_table.FILE)
        rule = GateRule.of(load(base=path / "config.yaml").quality)
        subject = GateEvidence(found, rule, verdict)
        for exhibit in (GateIntervals, GatePositions):
            yield exhibits.block(exhibit, subject, room, f"{name}-")
        yield _worst(verdict, *(answer_file.read(path / side / answer_file.FILE) for side in (base, name)))
    except (OSError, ArrowException, ValueError) as error:
        yield Missing("Evidence of the gate", reason(error))


def _intervals(verdict: GateVerdict) -> Table:
    rows = [
        ("mean excess divergence, nats per token", verdict.excess_nats, verdict.nats, 1.0),
        ("excess of broken prompts, %", 100 * verdict.excess_broken, verdict.broken, 100.0),
        ("excess of unanswered prompts, %", None, verdict.unanswered, 100.0),
    ]
    return Table(
        f"{verdict.verdict} after {verdict.prompts} prompts: B beyond A's own repeat",
        ("quantity", "estimate", "lower end", "upper end", "margin", "shown"),
        tuple(_interval(name, estimate, ends, unit) for name, estimate, ends, unit in rows),
        note=f"The ends hold at every moment (95 %). {NO_SIGN}",
    )


def _interval(name: str, estimate: float | None, ends: MeanInterval, unit: float) -> tuple[str, ...]:
    shown = "below the margin" if ends.is_below else "above the margin" if ends.is_above else "neither"
    known = UNKNOWN if estimate is None else figure(estimate)
    return name, known, *(figure(unit * end) for end in (ends.low, ends.high, ends.margin)), shown


def _pairs(verdict: GateVerdict) -> Table:
    failed = verdict.failed
    rows = (
        ("A again", verdict.again, failed.again),
        ("B", verdict.candidate, failed.candidate),
    )
    heads = (
        "answers",
        "mean divergence, nats",
        "broken prompts",
        "other tokens",
        "positions at risk",
        "unanswered",
    )
    return Table(
        "Each beside A's first answers",
        heads,
        tuple((name, *_pair(pair), str(missing)) for name, pair, missing in rows),
        note=f"{verdict.compared} prompts were answered by all; {failed.base} not by A the first time.",
    )


def _pair(pair: PairFigures) -> tuple[str, ...]:
    return figure(pair.mean_nats), str(pair.broken), str(pair.flips), str(pair.at_risk)


def _worst(verdict: GateVerdict, a: list[AnswerRecord], b: list[AnswerRecord]) -> Table:
    """The prompts with the largest divergence at one position, with both answers as text."""
    ours, theirs = ({one.prompt: one for one in side if one.repeat == 0} for side in (a, b))
    rows = tuple(
        (
            str(one.prompt),
            figure(one.most_nats),
            figure(one.excess_nats),
            *_texts(ours.get(one.prompt), theirs.get(one.prompt)),
        )
        for one in verdict.worst
    )
    heads = "prompt", "most at one position, nats", "mean excess, nats", "A", "B"
    return Table("The worst prompts side by side", heads, rows, words=frozenset({3, 4}), stacks=True)


def _texts(*both: AnswerRecord | None) -> list[str]:
    """Both answers as text, or as token ids where their texts do not tell them apart."""
    texts = [(one.text or "").strip() if one else "" for one in both]
    if all(texts) and len(set(texts)) > 1:
        return texts
    return [" ".join(map(str, one.answer.tokens)) if one and one.answer else UNKNOWN for one in both]
