"""Figures of runs, studies and plans: each draws on axes, has a table and says in words what is seen.

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
    tornado,
)
from analysis.figures.arrivals import arrivals_table, plot_arrivals
from analysis.figures.cdf import cdf_table, plot_cdf
from analysis.figures.client import client_lag_table, plot_client_lag
from analysis.figures.comparison import compare_table, plot_compare
from analysis.figures.errors import errors_table, plot_errors
from analysis.figures.exhibit import Exhibit, NoData
from analysis.figures.goodput import goodput_table, plot_goodput
from analysis.figures.latency import latency_table, plot_latency_vs_qps
from analysis.figures.pareto import pareto_table, plot_pareto
from analysis.figures.purchase import plan_table, plot_plan
from analysis.figures.repeats import plot_repeats, repeats_table
from analysis.figures.replicas import plot_replica_balance, replica_balance_table
from analysis.figures.scaling import plot_scaling, scaling_table
from analysis.figures.search import plot_search, search_table
from analysis.figures.timeline import plot_timeseries, timeseries_table
from analysis.figures.tornado import plot_sensitivity, sensitivity_table

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

PLAN, SENSITIVITY = purchase.EXHIBIT, tornado.EXHIBIT
"""Figures of the tree of a plan."""

__all__ = [
    "COMPARE",
    "EXHIBITS",
    "PLAN",
    "REPEATS",
    "SCALING",
    "SENSITIVITY",
    "Exhibit",
    "NoData",
    "arrivals_table",
    "cdf_table",
    "client_lag_table",
    "compare_table",
    "errors_table",
    "goodput_table",
    "latency_table",
    "pareto_table",
    "plan_table",
    "plot_arrivals",
    "plot_cdf",
    "plot_client_lag",
    "plot_compare",
    "plot_errors",
    "plot_goodput",
    "plot_latency_vs_qps",
    "plot_pareto",
    "plot_plan",
    "plot_repeats",
    "plot_replica_balance",
    "plot_scaling",
    "plot_search",
    "plot_sensitivity",
    "plot_timeseries",
    "repeats_table",
    "replica_balance_table",
    "scaling_table",
    "search_table",
    "sensitivity_table",
    "timeseries_table",
]
