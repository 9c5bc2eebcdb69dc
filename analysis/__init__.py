"""The meaning of numbers: records, metrics, capacity, validity, runs. Imports neither Ray nor HTTP nor vLLM.

Holds everything that a notebook needs: runs and studies, tables, a figure for each question, and the plan.
Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from conf import lazy

if TYPE_CHECKING:
    from analysis.exchange import compare, export
    from analysis.figures.client import plot_client_lag
    from analysis.figures.comparison import plot_compare, plot_scaling
    from analysis.figures.exhibit import NoData
    from analysis.figures.latency import plot_cdf, plot_latency
    from analysis.figures.plan import plot_plan
    from analysis.figures.search import plot_search
    from analysis.figures.service import plot_pareto, plot_replica_balance
    from analysis.figures.timeline import plot_timeseries
    from analysis.planning import cost, plan, scaling
    from analysis.report import build_report
    from analysis.results.recount import rejudge
    from analysis.results.runs import Run, RunError, load_run, load_runs
    from analysis.results.studies import Study, load_study
    from analysis.results.tables import OverBound, capacity_table, over_bound, percentiles
    from conf.specs.planning import Demand, Margins

__all__ = [
    "Demand",
    "Margins",
    "NoData",
    "OverBound",
    "Run",
    "RunError",
    "Study",
    "build_report",
    "capacity_table",
    "compare",
    "cost",
    "export",
    "load_run",
    "load_runs",
    "load_study",
    "over_bound",
    "percentiles",
    "plan",
    "plot_cdf",
    "plot_client_lag",
    "plot_compare",
    "plot_latency",
    "plot_pareto",
    "plot_plan",
    "plot_replica_balance",
    "plot_scaling",
    "plot_search",
    "plot_timeseries",
    "rejudge",
    "scaling",
]
_HOMES = {
    "Demand": "conf.specs.planning",
    "Margins": "conf.specs.planning",
    "NoData": "analysis.figures.exhibit",
    "OverBound": "analysis.results.tables",
    "Run": "analysis.results.runs",
    "RunError": "analysis.results.runs",
    "Study": "analysis.results.studies",
    "build_report": "analysis.report",
    "capacity_table": "analysis.results.tables",
    "compare": "analysis.exchange",
    "cost": "analysis.planning",
    "export": "analysis.exchange",
    "load_run": "analysis.results.runs",
    "load_runs": "analysis.results.runs",
    "load_study": "analysis.results.studies",
    "over_bound": "analysis.results.tables",
    "percentiles": "analysis.results.tables",
    "plan": "analysis.planning",
    "plot_cdf": "analysis.figures.latency",
    "plot_client_lag": "analysis.figures.client",
    "plot_compare": "analysis.figures.comparison",
    "plot_latency": "analysis.figures.latency",
    "plot_pareto": "analysis.figures.service",
    "plot_plan": "analysis.figures.plan",
    "plot_replica_balance": "analysis.figures.service",
    "plot_scaling": "analysis.figures.comparison",
    "plot_search": "analysis.figures.search",
    "plot_timeseries": "analysis.figures.timeline",
    "rejudge": "analysis.results.recount",
    "scaling": "analysis.planning",
}
__getattr__ = lazy("analysis", _HOMES)


def __dir__() -> list[str]:
    """The names that a notebook completes."""
    return __all__
