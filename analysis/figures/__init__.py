"""Figures of runs, studies and plans: each draws on axes, has a table and a text that says what is seen.

Nothing of matplotlib is imported before something is drawn.
"""

from analysis.figures import (
    arrivals,
    cdf,
    client,
    comparison,
    errors,
    goodput,
    latency,
    pareto,
    purchase,
    repeats,
    replicas,
    scaling,
    search,
    timeline,
)
from analysis.figures.exhibit import Exhibit, NoData

EXHIBITS: tuple[Exhibit, ...] = (
    latency.EXHIBIT,
    search.EXHIBIT,
    cdf.EXHIBIT,
    client.EXHIBIT,
    arrivals.EXHIBIT,
    timeline.EXHIBIT,
    replicas.EXHIBIT,
    pareto.EXHIBIT,
    goodput.EXHIBIT,
    errors.EXHIBIT,
)
"""The figures of one run, in the order in which they answer its reader."""

REPEATS, COMPARE, SCALING = repeats.EXHIBIT, comparison.EXHIBIT, scaling.EXHIBIT
"""Figures of several runs, or of the tree of a study."""

PLAN = purchase.EXHIBIT
"""Figure of the tree of a plan."""

__all__ = ["COMPARE", "EXHIBITS", "PLAN", "REPEATS", "SCALING", "Exhibit", "NoData"]
