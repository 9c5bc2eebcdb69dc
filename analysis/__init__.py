"""The meaning of numbers: records, metrics, capacity, validity, runs. Imports neither Ray nor HTTP nor vLLM.

Holds everything that a notebook needs: runs and studies, tables, a figure for each question, and the plan.
Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from conf import lazy

if TYPE_CHECKING:
    from analysis.exchange import compare as compare
    from analysis.exchange import export as export
    from analysis.figures.client import plot_client_lag as plot_client_lag
    from analysis.figures.comparison import plot_compare as plot_compare
    from analysis.figures.exhibit import NoData as NoData
    from analysis.figures.latency import plot_cdf as plot_cdf
    from analysis.figures.latency import plot_latency as plot_latency
    from analysis.figures.plan import plot_plan as plot_plan
    from analysis.figures.plan import plot_scaling as plot_scaling
    from analysis.figures.search import plot_search as plot_search
    from analysis.figures.service import plot_pareto as plot_pareto
    from analysis.figures.service import plot_replica_balance as plot_replica_balance
    from analysis.figures.timeline import plot_timeseries as plot_timeseries
    from analysis.planning import cost as cost
    from analysis.planning import plan as plan
    from analysis.planning import scaling as scaling
    from analysis.report import build_report as build_report
    from analysis.results.recount import rejudge as rejudge
    from analysis.results.runs import Run as Run
    from analysis.results.runs import RunError as RunError
    from analysis.results.runs import load_run as load_run
    from analysis.results.runs import load_runs as load_runs
    from analysis.results.studies import Study as Study
    from analysis.results.studies import load_study as load_study
    from analysis.results.tables import OverBound as OverBound
    from analysis.results.tables import capacity_table as capacity_table
    from analysis.results.tables import over_bound as over_bound
    from analysis.results.tables import percentiles as percentiles
    from conf.specs.planning import Demand as Demand
    from conf.specs.planning import Margins as Margins

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
    "plot_scaling": "analysis.figures.plan",
    "plot_search": "analysis.figures.search",
    "plot_timeseries": "analysis.figures.timeline",
    "rejudge": "analysis.results.recount",
    "scaling": "analysis.planning",
}
__all__ = sorted(_HOMES)
__getattr__ = lazy("analysis", _HOMES)


def __dir__() -> list[str]:
    """The names that a notebook completes."""
    return __all__
