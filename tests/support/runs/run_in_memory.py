"""A run that is not in a folder: what `analysis.figures` asks of a `Run`, from rows made in a test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis import load_run
from analysis.capacity import window_table
from analysis.results.experiment_facts import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.verdicts import RunVerdict
from analysis.rows import metrics, records
from conf import Experiment

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
NS = 1_000_000_000


@cache
def golden_config() -> Experiment:
    """Read once: that takes longer than to draw a figure."""
    return load_run(GOLDEN).config


@dataclass(frozen=True)
class RunInMemory:
    """The same names as `analysis.results.runs.Run`."""

    rows: Sequence[dict[str, Any]]
    lines: Sequence[dict[str, Any]] = ()
    sweep: dict[str, Any] | None = None
    told: Sequence[dict[str, Any]] = ()
    config: Experiment = field(default_factory=golden_config)
    name: str = "in memory"

    @property
    def claims(self) -> bool:
        return bool((self.sweep or {}).get("valid"))

    @property
    def verdict(self) -> RunVerdict | None:
        """The conclusion on the golden run's experiment, as if its engine were real."""
        if self.sweep is None:
            return None
        facts = to_tree(describe(golden_config())) | {"engine": "vllm"} | self.sweep["experiment"]
        checks = [{"unit": "ms"} | check for check in self.sweep["checks"]]
        return from_tree(RunVerdict, self.sweep | {"experiment": facts, "checks": checks}, self.name)

    def requests(self, columns: Sequence[str] | None = None, latencies: bool = False) -> pa.Table:
        table = records.table(self.rows).sort_by("due_ns")
        table = metrics.with_latencies(table) if latencies else table
        return table if columns is None else table.select(columns)

    def windows(self) -> pa.Table:
        return pa.Table.from_pylist(list(self.lines), schema=window_table.WINDOWS)

    def timeseries(self) -> pa.Table:
        return pa.Table.from_pylist(list(self.told), schema=records.SERVER)

    def clients(self) -> pa.Table:
        return records.CLIENTS.empty_table()

    def events(self) -> list[dict[str, Any]]:
        return []

    def but(self, **changes: Any) -> "RunInMemory":
        return replace(self, **changes)


def request(
    window_index: int, due_s: float, ttft_ms: float = 100.0, tpot_ms: float = 10.0, **more: Any
) -> dict[str, Any]:
    """A row in a window: 11 tokens, sent 1 ms after it was due, unless `more` says otherwise."""
    first_ns = int(ttft_ms * 1e6)
    last_ns = first_ns + int(10 * tpot_ms * 1e6)
    row = {
        "seq": int(due_s * 1e6) + 1_000_000_000 * window_index,
        "client_id": 0,
        "window_index": window_index,
        "phase": "window",
        "status": "ok",
        "session_id": -1,
        "due_ns": int(due_s * NS),
        "send_offset_ns": 1_000_000,
        "first_token_offset_ns": first_ns,
        "last_token_offset_ns": last_ns,
        "end_offset_ns": last_ns,
        "requested_output_tokens": 11,
        "output_tokens": 11,
        "reads": 11,
    }
    return row | more


def failed(window_index: int, due_s: float, status: str = "http_error", **more: Any) -> dict[str, Any]:
    """A row without an answer, sent unless it is of the load generator's own failures."""
    none = dict.fromkeys(("first_token_offset_ns", "last_token_offset_ns", "end_offset_ns", "output_tokens"))
    unsent = {"send_offset_ns": None} if status in ("missed", "lost") else {}
    return request(window_index, due_s, status=status) | none | unsent | more


def window(index: int, rate_qps: float, start_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """A line of windows.parquet for one node, valid, within both bounds, unless `more` says otherwise."""
    quantiles = {f"{limit}_p{q}_ms": 1.0 * q for limit in ("ttft", "tpot") for q in (50, 90, 99)}
    span = {"window_start_ns": int(start_s * NS), "window_end_ns": int(end_s * NS)}
    line = {
        "index": index,
        "kind": "window",
        "rate_qps": rate_qps,
        "rate_qps_per_node": rate_qps,
        "nodes": 1,
        "concurrency": 0,
        "start_ns": int(start_s * NS),
        "planned_end_ns": int(end_s * NS),
        "aborted": False,
        "bad": False,
        "valid": True,
        "void_reason": "",
        "weight": 1.0,
        "requests": 10,
        "completed": 10,
        "failed": 0,
        "log_work": math.log(rate_qps),
        "work_qps_per_node": rate_qps,
        "goodput_qps_per_node": rate_qps,
        "reason": "",
    }
    return line | span | quantiles | more


def concluded(valid: bool = True, **capacity: Any) -> dict[str, Any]:
    """A sweep.json with bounds of 2000 and 100 ms, a gate of 20 ms and a capacity of 5 [4, 6]."""
    q = {"value": 5.0, "low": 4.0, "high": 6.0, "certified": 4.2}
    result = {"qps_per_node": q, "open_above": False, "open_below": False, "binding": "tpot"} | capacity
    return {
        "experiment": {"slo": {"ttft_p90_ms": 2000.0, "tpot_p90_ms": 100.0}},
        "checks": [{"name": "send_lag_p99", "bound": 20.0, "value": 1.0, "passed": True}],
        "capacity": result,
        "valid": valid,
        "exit_code": 0 if valid else 4,
        "reason": "" if valid else "client_limited",
    }
