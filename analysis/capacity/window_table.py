"""The table windows.parquet: one row per ramp step and measurement window, and the basis of the posterior."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import Capacity
from analysis.capacity.rules import Verdict
from analysis.capacity.window_counts import (
    EVERY,
    Window,
    WindowCounts,
    latency_so_far,
    parts_over,
)
from analysis.rows import metrics, parquet, records, routing_spread
from analysis.stats.quantiles import quantile
from conf.specs.bounds import ITL_WITHIN, LIMITS, PER_REQUEST, Bound, Limit, Slo, metric_of, quantile_of
from conf.specs.experiment import Arrivals, Lengths, Workload

SCHEMA_VERSION = 2
QUANTILES = (50, 90, 99)
KEYS = ("index", "kind")
"""Columns of every version of the table."""

_REPLICA = pa.struct([("replica_id", pa.string()), ("requests", pa.int64()), ("ttft_p90_ms", pa.float64())])
_BOUND = pa.struct(
    [
        ("bound", pa.string()),
        ("quantile_ms", pa.float64()),
        ("over", pa.float64()),
        ("determined", pa.float64()),
        ("phi", pa.float64()),
    ]
)
WINDOWS = parquet.described("windows", kinds={"replica": _REPLICA, "bound": _BOUND})
"""Arrow schema of windows.parquet. `*_phi` is the dispersion of the final fit; null if the window was not
used."""


@dataclass(frozen=True, slots=True)
class CountingBasis:
    """Settings that the counts and the posterior rest on beside the rows.

    `input_tokens` and `output_tokens` are the workload's means, in whose work the load is counted; `prior` is
    None where nothing was searched, `streams` and `prefix_hit` are as asked, `replicas` the number deployed
    (None if unknown). Requests due after `counted_ns`, on the run's clock, were not yet sent when the windows
    were counted.
    """

    ttft_p90_ms: float | None
    tpot_p90_ms: float | None
    input_tokens: int
    output_tokens: int
    arrivals: Arrivals
    streams: int
    counted_ns: int
    prior: Prior | None
    prefix_hit: float = 0.0
    replicas: int | None = None
    at_most_ms: Mapping[Limit, float | None] = field(default_factory=dict)
    joint: float | None = None
    itl_within: float = ITL_WITHIN

    @classmethod
    def of(
        cls,
        slo: Slo,
        workload: Workload,
        streams: int,
        counted_ns: int,
        prior: Prior | None,
        replicas: int | None = None,
    ) -> "CountingBasis":
        """The basis of a run with these settings."""
        return cls(
            ttft_p90_ms=slo.ttft_p90_ms,
            tpot_p90_ms=slo.tpot_p90_ms,
            input_tokens=round(workload.prompt_tokens),
            output_tokens=workload.output_tokens.mean,
            arrivals=workload.arrivals,
            streams=streams,
            counted_ns=counted_ns,
            prior=prior,
            prefix_hit=workload.prefix_hit,
            replicas=replicas,
            at_most_ms=slo.at_most_ms,
            joint=slo.joint,
            itl_within=slo.itl_within,
        )

    @property
    def slo(self) -> Slo:
        """The bounds as a spec."""
        own = self.ttft_p90_ms, self.tpot_p90_ms, dict(self.at_most_ms), self.joint, self.itl_within
        return Slo("recorded", *own)

    @property
    def workload(self) -> Workload:
        """A workload with these means, arrivals and hits; its lengths are otherwise unknown."""
        lengths = Lengths(self.input_tokens), Lengths(self.output_tokens)
        trace = "recorded" if self.arrivals.kind == "trace" else ""
        return Workload("recorded", *lengths, arrivals=self.arrivals, trace=trace, prefix_hit=self.prefix_hit)


def over_share(line: Mapping[str, Any], limit: Limit) -> float | None:
    """The share over a bound in a line of windows.parquet; None where nothing tells."""
    if limit in LIMITS:
        over, determined = line[f"{limit}_over"], line[f"{limit}_determined"]
    else:
        counted: Mapping[str, Any] = next(
            (bound for bound in line["bounds"] or () if bound["bound"] == limit), {}
        )
        over, determined = counted.get("over"), counted.get("determined")
    return over / determined if determined else None


def row(
    counts: WindowCounts,
    verdict: Verdict,
    basis: CountingBasis,
    rows: pa.Table,
    reason: str,
    bad: bool = False,
) -> dict[str, Any]:
    """One line of the table; `rows` are the requests of the window."""
    latency = {"ttft": metrics.ttft(rows), "tpot": metrics.tpot(rows)}
    # An answer without a TPOT has no such bound to miss.
    good = ~(parts_over(rows, basis.slo, EVERY, basis.counted_ns)[0] > 0) & ~np.isnan(latency["ttft"])
    return {
        **{
            name: getattr(counts, name) for name in WINDOWS.names if name in WindowCounts.__dataclass_fields__
        },
        "rate_qps_per_node": counts.rate_qps / counts.nodes,
        "bad": bad,
        "valid": verdict.valid,
        "void_reason": verdict.reason,
        "work_qps_per_node": math.exp(counts.log_work),
        "goodput_qps_per_node": int(good.sum()) / counts.seconds / counts.nodes if counts.seconds else None,
        **token_rates(rows, counts.seconds * counts.nodes),
        **{f"{limit}_p{q}_ms": quantile(latency[limit], q / 100) for limit in LIMITS for q in QUANTILES},
        "prefix_hit": metrics.prefix_hit(rows),
        "prefix_hit_intended": None if routing_spread.with_sessions(rows) else metrics.prefix_shared(rows),
        "replicas_per_session": routing_spread.replicas_per_session(rows),
        "max_over_mean_share": routing_spread.max_over_mean_share(rows, basis.replicas),
        "turns_blocked": routing_spread.turns_blocked(rows),
        "turn_blocked_max_ms": routing_spread.longest_block_ms(rows),
        "by_replica": routing_spread.by_replica(rows),
        "lag_p99_ms": quantile(metrics.send_lag(rows), 0.99),
        **{f"{limit}_over": counts.over(limit).over for limit in LIMITS},
        **{f"{limit}_determined": counts.over(limit).determined for limit in LIMITS},
        **{f"{limit}_phi": None for limit in LIMITS},
        "bounds": [_bound(counts, bound, rows, basis.counted_ns) for bound in others(basis.slo)],
        "reason": reason,
    }


def token_rates(rows: pa.Table, node_s: float) -> dict[str, float | None]:
    """Tokens per second and node of the answers among the requests of a window of `node_s` node-seconds."""
    names = "prompt_token_rate_per_node", "output_token_rate_per_node"
    if not node_s:
        return dict.fromkeys(names)
    answered = rows.filter(pa.array(metrics.status_in(rows, records.OK)))
    prompt, planned = (
        metrics.numbers(answered, name) for name in ("prompt_tokens", "requested_input_tokens")
    )
    tokens = np.where(np.isnan(prompt), planned, prompt), metrics.numbers(answered, "output_tokens")
    unknown = (bool(len(counts)) and np.isnan(counts).all() for counts in tokens)
    rates = (float(np.nansum(counts)) / node_s for counts in tokens)
    return {name: None if no else rate for name, no, rate in zip(names, unknown, rates, strict=True)}


def others(slo: Slo) -> list[Bound]:
    """The bounds that have no columns of their own."""
    return [bound for bound in slo.bounds if bound.limit not in LIMITS]


def _bound(counts: WindowCounts, bound: Bound, rows: pa.Table, now_ns: int) -> dict[str, Any]:
    counted = counts.over(bound.limit)
    return {
        "bound": bound.limit,
        "quantile_ms": limited(rows, bound, now_ns),
        "over": counted.over,
        "determined": counted.determined,
        "phi": None,
    }


def limited(rows: pa.Table, bound: Bound, now_ns: int) -> float | None:
    """The quantile in ms that a bound limits, as known at `now_ns`; None where it limits a share."""
    if metric_of(bound.limit) not in PER_REQUEST:
        return None
    return quantile(latency_so_far(rows, bound, now_ns), quantile_of(bound.limit))


def with_dispersion(rows: list[dict[str, Any]], capacity: Capacity | None) -> list[dict[str, Any]]:
    """The lines with the dispersion that the posterior assumed for each window it used."""
    if capacity is None:
        return rows
    phi = {limit: fit.phi for limit, fit in capacity.limits.items()}
    own = {f"{limit}_phi": phi[limit] for limit in LIMITS if limit in phi}
    return [
        line | own | {"bounds": [bound | {"phi": phi[bound["bound"]]} for bound in line["bounds"]]}
        if line["index"] in capacity.windows
        else line
        for line in rows
    ]


def window(line: dict[str, Any]) -> Window:
    """The window of one line."""
    return Window(**{name: line[name] for name in Window.__dataclass_fields__})


def write(rows: Sequence[Mapping[str, Any]], basis: dict[str, Any], path: Path) -> None:
    """Write the table complete or not at all (by rename); `basis` is a `CountingBasis` as plain figures."""
    metadata = {"schema_version": str(SCHEMA_VERSION), "basis": json.dumps(basis)}
    schema = WINDOWS.with_metadata(metadata)
    parquet.write(pa.Table.from_pylist([dict(row) for row in rows], schema=schema), path)


def read(path: Path) -> pa.Table:
    """The table at `path` with its own metadata.

    Raises OSError or an ArrowException for a file that is broken, no such table, or of another version.
    """
    written = pq.read_schema(path)
    parquet.refuse_foreign(path, written, SCHEMA_VERSION, "windows", KEYS)
    return pq.read_table(path, schema=WINDOWS).replace_schema_metadata(written.metadata)


def basis_of(table: pa.Table) -> CountingBasis | None:
    """Basis of the table's posterior; None if it records none, or not all of it."""
    written = (table.schema.metadata or {}).get(b"basis")
    if written is None:
        return None
    try:
        known = json.loads(written)
        prior = known.pop("prior")
        arrivals = Arrivals(**known.pop("arrivals"))
        return CountingBasis(**known, arrivals=arrivals, prior=Prior(**prior) if prior else None)
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
