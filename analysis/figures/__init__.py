"""Figures of runs and studies: each is data, read once, with a drawing, a table, and a text that says it.

Nothing of matplotlib is imported before something is drawn.
"""

from analysis.figures.client import ClientLag
from analysis.figures.exhibit import Exhibit, NoData, RunData
from analysis.figures.latency import Cdf, Latency, ShareOver
from analysis.figures.search import Search
from analysis.figures.service import Pareto, ReplicaBalance
from analysis.figures.timeline import Timeline

EXHIBITS: tuple[type[Exhibit], ...] = (
    Latency,
    Search,
    Cdf,
    ClientLag,
    Timeline,
    ReplicaBalance,
    Pareto,
    ShareOver,
)
"""The figures of one run, in the order in which they answer its reader."""

__all__ = ["EXHIBITS", "Exhibit", "NoData", "RunData"]
