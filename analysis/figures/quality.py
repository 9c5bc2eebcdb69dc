"""Figures of a quality gate: its intervals prompt after prompt, and the divergence along an answer.

The statistics are those of `analysis.quality`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.figures import canvas
from analysis.figures.canvas import Axes, Look
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.windows import counted
from analysis.quality import gate
from analysis.quality.answers import PromptEvidence
from analysis.quality.gate import GateMoment, GateRule
from analysis.quality.gate_verdict import GateVerdict, MeanInterval

HEIGHT_IN = 3.2
SHOWN_MARGINS = 6.0
"""Ends of an interval are drawn up to so many margins: the first ones are anywhere (our choice)."""


@dataclass(frozen=True, slots=True)
class GateEvidence:
    """The evidence of a gate, the rule by which it is judged, and its verdict."""

    found: Sequence[PromptEvidence]
    rule: GateRule
    verdict: GateVerdict


def plot_gate(subject: GateEvidence, ax: Axes | None = None) -> Axes:
    """Both intervals after each prompt, with their margins: excess divergence, excess of broken prompts.

    Raises NoData where no prompt was compared.
    """
    ax = ax or canvas.new_axes(HEIGHT_IN)
    seen = _moments(subject)
    left, right = canvas.beside(ax, top=0.1)
    _draw(left, seen, [one.nats for one in seen], 1.0, "excess divergence, nats per token")
    _draw(right, seen, [one.broken for one in seen], 100.0, "excess of broken prompts, %")
    for panel in (left, right):
        canvas.legend(panel, columns=2)
    return ax


def gate_table(subject: GateEvidence) -> pa.Table:
    """A row per prompt that counts: both intervals after it."""
    rows = [
        {
            "prompts": one.prompts,
            "excess_nats_low": one.nats.low,
            "excess_nats_high": one.nats.high,
            "excess_broken_low": one.broken.low,
            "excess_broken_high": one.broken.high,
        }
        for one in _moments(subject)
    ]
    return pa.Table.from_pylist(rows)


def gate_alt(subject: GateEvidence) -> str:
    """The last intervals with their margins, and the verdict."""
    last = _moments(subject)[-1]
    nats, broken = last.nats, last.broken
    return (
        f"After {counted(last.prompts, 'prompt')} the mean excess divergence lies between {nats.low:.4f} and"
        f" {nats.high:.4f} nats (margin {nats.margin:g}), the excess of broken prompts between"
        f" {100 * broken.low:.2f} and {100 * broken.high:.2f} % (margin {100 * broken.margin:g} %):"
        f" {subject.verdict.verdict}."
    )


def plot_positions(subject: GateEvidence, ax: Axes | None = None) -> Axes:
    """Mean divergence from A's first answer at each position, of A's second answer and of B's.

    Raises NoData where no prompt was compared.
    """
    whole, panel = canvas.single(ax, HEIGHT_IN, top=0.1)
    rows = positions_table(subject).to_pylist()
    for name, style in zip(("again", "candidate"), canvas.STYLES, strict=False):
        known = [(row["position"], row[f"{name}_nats"]) for row in rows if row[f"{name}_nats"] is not None]
        label = "A again" if name == "again" else "B"
        panel.plot([at for at, _ in known], [nats for _, nats in known], **style.drawn, label=label)
    panel.set_ylim(bottom=0)
    canvas.label(panel, "position in the answer", "mean divergence, nats")
    canvas.legend(panel, columns=2)
    return whole


def positions_table(subject: GateEvidence) -> pa.Table:
    """A row per position: prompts at risk there, and the mean divergence of A's second answer and of B's."""
    if not subject.verdict.by_position:
        raise NoData("no prompt was compared")
    return pa.Table.from_pylist(
        [
            {
                "position": one.position,
                "again_at_risk": one.again_at_risk,
                "candidate_at_risk": one.candidate_at_risk,
                "again_nats": one.again_nats,
                "candidate_nats": one.candidate_nats,
            }
            for one in subject.verdict.by_position
        ]
    )


def positions_alt(subject: GateEvidence) -> str:
    """Mean divergence of both, and the number of answers that differ."""
    again, candidate = subject.verdict.again, subject.verdict.candidate
    return (
        f"Over {counted(len(positions_table(subject)), 'position')} the mean divergence is"
        f" {again.mean_nats:.4f} nats for A's second answers and {candidate.mean_nats:.4f} for B's;"
        f" {again.flips} and {candidate.flips} of {counted(subject.verdict.compared, 'answer')} have another"
        " token somewhere."
    )


def _moments(subject: GateEvidence) -> list[GateMoment]:
    if not subject.verdict.compared:
        raise NoData("no prompt was compared")
    return gate.moments(subject.found, subject.rule)


def _draw(ax: Axes, seen: Sequence[GateMoment], ends: Sequence[MeanInterval], unit: float, name: str) -> None:
    """One interval over prompts, in a unit, cut some margins away from nothing."""
    most = SHOWN_MARGINS * ends[-1].margin * unit
    prompts = [one.prompts for one in seen]
    for end, label in (("low", "lower end"), ("high", "upper end")):
        values = [min(max(unit * getattr(one, end), -most), most) for one in ends]
        look: Look = {"linestyle": "-" if end == "high" else "--", "color": canvas.BLUE, "linewidth": 1.3}
        ax.plot(prompts, values, **look, label=label)
    canvas.bound(ax, ends[-1].margin * unit, "margin")
    ax.set_ylim(-1.05 * most, 1.05 * most)
    canvas.label(ax, "prompts", name)


EXHIBITS = (
    Exhibit(
        "quality_gate",
        "Both intervals, prompt after prompt",
        plot_gate,
        gate_table,
        gate_alt,
        "quality-b.parquet: divergence_nats by prompt and pair",
        HEIGHT_IN,
    ),
    Exhibit(
        "quality_positions",
        "Divergence along an answer",
        plot_positions,
        positions_table,
        positions_alt,
        "quality-b.parquet: divergence_nats by position and pair",
        HEIGHT_IN,
    ),
)
