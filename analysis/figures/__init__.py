"""Figures of runs and studies: each is data, read once, with a drawing, a table, and a text that says it.

Nothing of matplotlib is imported before something is drawn.
"""

from analysis.figures.comparison import Comparison, Nodes
from analysis.figures.exhibit import Exhibit, NoData, RunData, plot_of
from analysis.figures.latency import Cdf, Latency, ShareOver
from analysis.figures.load import ClientLag, Search
from analysis.figures.service import Pareto, ReplicaBalance, Scaling, Timeline

__all__ = ["EXHIBITS", "Exhibit", "NoData", "RunData"]
EXHIBITS: tuple[type[Exhibit], ...] = (
    *(Latency, Search, Cdf, ClientLag, Timeline),
    *(ReplicaBalance, Pareto, ShareOver),
)
"""The figures of one run, in the order in which they answer its reader."""

plot_cdf = plot_of(Cdf)
plot_client_lag = plot_of(ClientLag)
plot_compare = plot_of(Comparison)
plot_latency = plot_of(Latency)
plot_pareto = plot_of(Pareto)
plot_plan = plot_of(Nodes)
plot_replica_balance = plot_of(ReplicaBalance)
plot_scaling = plot_of(Scaling)
plot_search = plot_of(Search)
plot_timeseries = plot_of(Timeline)
