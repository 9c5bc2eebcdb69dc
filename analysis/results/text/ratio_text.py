"""The paired ratio of two capacities, as a headline and as lines of the screen."""

from analysis.capacity.paired_ratio import Ratio
from analysis.results.types.study_verdict import StudyVerdict
from analysis.stats.estimate import span
from conf.specs.bounds import label

MOST_TOLD = 4
"""Keys that differ between A and B and stand on the screen."""


def headline(found: Ratio) -> str:
    """The verdict in a line."""
    return f"B / A = {span(found.estimate)} (95 %): {found.verdict}"


def differing(study: StudyVerdict) -> str:
    """The keys in which A and B differ, as a line."""
    told = [f"{key} {ours} -> {theirs}" for key, (ours, theirs) in (study.differs or {}).items()]
    more = f" and {len(told) - MOST_TOLD} more (study.json)" if len(told) > MOST_TOLD else ""
    return f"  from A to B: {', '.join(told[:MOST_TOLD])}{more}"


def lines(study: StudyVerdict, found: Ratio) -> list[str]:
    """The differences from A to B, and the evidence of the ratio."""
    correlation = "unknown" if found.correlation is None else f"{found.correlation:.2f}"
    out = [
        differing(study),
        f"  {found.pairs} pairs of windows: B got A's arrivals and lengths, scaled in time; correlation"
        f" {correlation}",
    ]
    out += [
        f"  by {label(limit)} alone {span(one.estimate)}, {100 * one.weight:.0f} % of what was over a bound"
        for limit, one in found.limits.items()
    ]
    if found.unlike:
        out.append("  A and B are limited by different bounds: the ratio is that of the two capacities alone")
    return out
