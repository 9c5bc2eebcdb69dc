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
from analysis.quality.gate_verdict import GateVerdict
from analysis.report import exhibits
from analysis.report.blocks import Block, Missing, Section
from analysis.report.exhibits import Room
from analysis.report.wording import UNKNOWN, figure
from analysis.results.studies import Study
from analysis.views import quality as gate
from analysis.views.shown import Table
from conf import load
from conf.io.one_line import reason

PURPOSE = "Whether the answers are still those of the first part (A)."


def sections(found: Study, room: Room) -> list[Section]:
    """The section of a gate; none of another study."""
    verdict = found.verdict.quality
    if not verdict or len(found.verdict.names) < 2:
        return []
    base, name = found.verdict.names[:2]
    blocks = tuple(_blocks(found.path, base, name, verdict, room))
    return [Section(f"quality-{name}", f"Answers of {name} beside {base}", PURPOSE, blocks)]


def _blocks(path: Path, base: str, name: str, verdict: GateVerdict, room: Room) -> Iterator[Block]:
    yield from gate.tables(verdict)
    try:
        found = evidence_table.read(path / evidence_table.FILE)
        rule = GateRule.of(load(base=path / "config.yaml").quality)
        subject = GateEvidence(found, rule, verdict)
        for exhibit in (GateIntervals, GatePositions):
            yield exhibits.block(exhibit, subject, room, f"{name}-")
        yield _worst(verdict, *(answer_file.read(path / side / answer_file.FILE) for side in (base, name)))
    except (OSError, ArrowException, ValueError) as error:
        yield Missing("Evidence of the gate", reason(error))


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
