"""Definitions on the page: words and formula of every metric, the capacity and its interval."""

from analysis.report.blocks import Block, Paragraph, Section
from analysis.report.wording import bound
from analysis.results.asked import AskedExperiment
from analysis.results.figures import CapacityFigures
from analysis.rows.metrics import METRICS
from analysis.views.shown import Table

METHOD = (
    "The interval of a capacity is that of a Bayesian posterior: for each bound a logistic model of the "
    "share of requests over it, regressed on the realised load, with the overdispersion of neighbouring "
    "requests measured in the run. The estimate is its median, the interval its 2.5 to 97.5 % quantiles, the "
    "certified rate its 5 % quantile."
)
CONSTANTS = (
    "The engine is simulated, so interval and certified rate are joint: distances from the estimate in ln, "
    "of this posterior and of the engine model under drawn constants, add as squares."
)
MEASURED = (
    "The interval of a measured p90 lies between two other quantiles of the same requests. They are as far "
    "from 0.9 as the error of the share of requests over the p90, with the overdispersion of neighbouring "
    "requests. It is unknown where a window holds too few independent stretches."
)


def section(asked: AskedExperiment, capacity: CapacityFigures | None) -> Section:
    """Definitions of everything that is claimed."""
    bounds = " and ".join(bound(asked.slo, limit) for limit in asked.slo.limits)
    words = (
        f"The capacity is the highest open-loop rate per node that keeps {bounds}, quantiles over all "
        "requests. A failed request counts as infinitely late."
    )
    joined = CONSTANTS if capacity and capacity.constants else ""
    interval = " ".join(filter(None, (METHOD, joined, _own(capacity))))
    rows = tuple((one.name, "ms", one.meaning, one.formula) for one in METRICS)
    heads = "metric", "unit", "in words", "formula (columns of requests/*.parquet)"
    metrics = Table("Metrics: one value per request", heads, rows, words=frozenset({2, 3}), stacks=True)
    blocks: tuple[Block, ...] = (Paragraph(words), Paragraph(interval), Paragraph(MEASURED), metrics)
    return Section("definitions", "Definitions", "What every number here means.", blocks)


def _own(capacity: CapacityFigures | None) -> str:
    """The note on the interval of a study; empty for a run."""
    interval = capacity.interval if capacity else ""
    pooled = interval and "posterior" not in interval
    return f"Here several runs stand together: {interval}." if pooled else ""
