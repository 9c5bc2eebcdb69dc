"""Definitions on the page: words and formula of every metric, the capacity and its interval.

Knows the definitions of `analysis.rows.metrics`; adds none.
"""

from collections.abc import Mapping
from typing import Any

from analysis.capacity.posterior import LIMITS
from analysis.report.blocks import Block, Paragraph, Section, Table
from analysis.report.wording import bound
from analysis.rows.metrics import METRICS

METHOD = (
    "The interval of a capacity is that of a Bayesian posterior: for each bound a logistic model of the "
    "share of requests over it, regressed on the realised load, with the overdispersion of neighbouring "
    "requests measured in the run. The estimate is its median, the interval its 2.5 to 97.5 % quantiles, the "
    "certified rate its 5 % quantile."
)
SECTIONING = (
    "The interval of a measured p90 is by sectioning: the quantiles of ten batches, in order of arrival, "
    "spread around that of the whole."
)


def section(asked: Mapping[str, Any], capacity: Mapping[str, Any] | None) -> Section:
    """Definitions of everything that is claimed."""
    slo = asked["slo"]
    bounds = " and ".join(bound(limit, slo[f"{limit}_p90_ms"]) for limit in LIMITS)
    words = (
        f"The capacity is the highest open-loop rate per node that keeps {bounds}, 90th percentiles over all "
        "requests. A failed request counts as infinitely late."
    )
    interval = f"{METHOD} {_own(capacity)}".strip()
    rows = tuple((one.name, one.unit, one.meaning, one.formula) for one in METRICS)
    heads = "metric", "unit", "in words", "formula (columns of requests/*.parquet)"
    metrics = Table("Metrics: one value per request", heads, rows, words=frozenset({2, 3}))
    blocks: tuple[Block, ...] = (Paragraph(words), Paragraph(interval), Paragraph(SECTIONING), metrics)
    return Section("definitions", "Definitions", "What every number here means.", blocks)


def _own(capacity: Mapping[str, Any] | None) -> str:
    """The note on the interval of a study; empty for a run."""
    interval = (capacity or {}).get("interval", "")
    pooled = interval and "posterior" not in interval
    return f"Here several runs stand together: {interval}." if pooled else ""
