"""The meaning of numbers: records, metrics, capacity, validity, runs. Imports neither Ray nor HTTP nor vLLM.

Holds everything that a notebook needs: runs and studies, tables, a figure for each question, and the plan.
Each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from conf import lazy

if TYPE_CHECKING:
    from analysis.exchange import compare as compare
    from analysis.exchange import export as export
    from analysis.figures import NoData as NoData
    from analysis.figures import plot_cdf as plot_cdf
    from analysis.figures import plot_client_lag as plot_client_lag
    from analysis.figures import plot_compare as plot_compare
    from analysis.figures import plot_latency as plot_latency
    from analysis.figures import plot_pareto as plot_pareto
    from analysis.figures import plot_plan as plot_plan
    from analysis.figures import plot_replica_balance as plot_replica_balance
    from analysis.figures import plot_scaling as plot_scaling
    from analysis.figures import plot_search as plot_search
    from analysis.figures import plot_timeseries as plot_timeseries
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
    "analysis.exchange": "compare export",
    "analysis.figures": "NoData plot_cdf plot_client_lag plot_compare plot_latency plot_pareto plot_plan "
    "plot_replica_balance plot_scaling plot_search plot_timeseries",
    "analysis.planning": "cost plan scaling",
    "analysis.report": "build_report",
    "analysis.results.recount": "rejudge",
    "analysis.results.runs": "Run RunError load_run load_runs",
    "analysis.results.studies": "Study load_study",
    "analysis.results.tables": "OverBound capacity_table over_bound percentiles",
    "conf.specs.planning": "Demand Margins",
}
_NAMES = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_NAMES)
__getattr__ = lazy("analysis", _NAMES)


def __dir__() -> list[str]:
    """The names that a notebook completes."""
    return __all__
