"""Figures of runs and studies: each draws on axes, has a table and a text that says what is seen.

Nothing of matplotlib is imported before something is drawn.
"""

from analysis.figures import (
    cdf,
    client,
    comparison,
    latency,
    pareto,
    replicas,
    scaling,
    search,
    shares,
    timeline,
)
from analysis.figures.exhibit import Exhibit, NoData

EXHIBITS: tuple[Exhibit, ...] = (
    latency.EXHIBIT,
    search.EXHIBIT,
    cdf.EXHIBIT,
    client.EXHIBIT,
    timeline.EXHIBIT,
    replicas.EXHIBIT,
    pareto.EXHIBIT,
    shares.EXHIBIT,
)
"""The figures of one run, in the order in which they answer its reader."""

COMPARE, SCALING = comparison.EXHIBIT, scaling.EXHIBIT
"""Figures of several runs, or of the tree of a study."""

__all__ = ["COMPARE", "EXHIBITS", "SCALING", "Exhibit", "NoData"]
