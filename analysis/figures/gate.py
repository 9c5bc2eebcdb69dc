"""Figures of a quality gate: its intervals prompt after prompt, and the divergence along an answer.

The statistics are those of `analysis.quality`.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Figure
from analysis.figures.exhibit import Exhibit, NoData, Row, counted
from analysis.quality import gate
from analysis.quality.answers import PromptEvidence
from analysis.quality.gate import GateMoment, GateVerdict, MeanInterval
from conf.specs.search import Quality

SHOWN_MARGINS = 6.0
"""Ends of an interval are drawn up to so many margins: the first ones are anywhere (our choice)."""


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """The evidence of a gate, the rule by which it is judged, and its verdict."""

    found: Sequence[PromptEvidence]
    rule: Quality
    verdict: GateVerdict


class GateIntervals(Exhibit):
    """Both intervals after each prompt: excess divergence, excess of broken prompts."""

    name = "quality_gate"
    title = "Both intervals, prompt after prompt"
    source = "quality-b.parquet: divergence_nats by prompt and pair"

    def __init__(self, subject: GateEvidence) -> None:
        self.verdict = subject.verdict
        if not self.verdict.compared:
            raise NoData("no prompt was compared")
        self.moments = gate.moments(subject.found, subject.rule)
        self.rows = [_row(moment) for moment in self.moments]

    def draw(self, figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        self._draw_ends(left, lambda moment: moment.nats, 1.0, "excess divergence, nats per token")
        self._draw_ends(right, lambda moment: moment.broken, 100.0, "excess of broken prompts, %")

    def alt(self) -> str:
        """The last intervals with their margins, and the verdict."""
        last = self.moments[-1]
        nats, broken = last.nats, last.broken
        return (
            f"After {counted(last.prompts, 'prompt')} the mean excess divergence lies between {nats.low:.4f}"
            f" and {nats.high:.4f} nats (margin {nats.margin:g}), the excess of broken prompts between"
            f" {100 * broken.low:.2f} and {100 * broken.high:.2f} % (margin {100 * broken.margin:g} %):"
            f" {self.verdict.verdict}."
        )

    def _draw_ends(
        self, ax: Axes, interval: Callable[[GateMoment], MeanInterval], unit: float, name: str
    ) -> None:
        """One interval over prompts, in a unit, cut some margins away from nothing."""
        ends, prompts = [interval(moment) for moment in self.moments], [m.prompts for m in self.moments]
        margin = ends[-1].margin * unit
        most = SHOWN_MARGINS * margin
        for end, label, line in (("low", "lower end", "--"), ("high", "upper end", "-")):
            values = [min(max(unit * getattr(one, end), -most), most) for one in ends]
            ax.plot(prompts, values, **canvas.line(canvas.BLUE, line), label=label)
        canvas.bound(ax, margin, "margin")
        ax.set_ylim(-1.05 * most, 1.05 * most)
        canvas.label(ax, "prompts", name)


class GatePositions(Exhibit):
    """Mean divergence from A's first answer at each position, of A's second answer and of B's."""

    name = "quality_positions"
    title = "Divergence along an answer"
    source = "quality-b.parquet: divergence_nats by position and pair"

    def __init__(self, subject: GateEvidence) -> None:
        self.verdict = subject.verdict
        if not self.verdict.by_position:
            raise NoData("no prompt was compared")
        self.rows = [asdict(position) for position in self.verdict.by_position]

    def draw(self, figure: Figure) -> None:
        ax = figure.subplots()
        names = ("again_nats", "A again"), ("candidate_nats", "B")
        for (name, label), style in zip(names, canvas.STYLES, strict=False):
            canvas.series(ax, [(row["position"], row[name]) for row in self.rows], **style.drawn, label=label)
        ax.set_ylim(bottom=0)
        canvas.label(ax, "position in the answer", "mean divergence, nats")

    def alt(self) -> str:
        """Mean divergence of both, and the number of answers that differ."""
        again, candidate = self.verdict.again, self.verdict.candidate
        return (
            f"Over {counted(len(self.verdict.by_position), 'position')} the mean divergence is"
            f" {again.mean_nats:.4f} nats for A's second answers and {candidate.mean_nats:.4f} for B's;"
            f" {again.flips} and {candidate.flips} of {counted(self.verdict.compared, 'answer')} have another"
            " token somewhere."
        )


def _row(moment: GateMoment) -> Row:
    return {
        "prompts": moment.prompts,
        "excess_nats_low": moment.nats.low,
        "excess_nats_high": moment.nats.high,
        "excess_broken_low": moment.broken.low,
        "excess_broken_high": moment.broken.high,
    }
