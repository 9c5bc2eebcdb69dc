"""Read GuideLLM's JSON, one load per benchmark, as GuideLLM 0.8.1 writes it.

Times are wall seconds. `info.timings.targeted_start` is the planned send of a rate strategy, so that
latencies can count from the due time as ours do; of a closed loop it is no plan, and the send replaces it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from analysis.exchange import foreign
from analysis.exchange.foreign import Foreign, OfferedLoad, Row, Trio
from analysis.results.runs import RunError
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile

TOOL = "GuideLLM"
RATED = ("constant", "poisson", "trace")
"""Strategies whose `targeted_start` is a schedule."""
OWN = {
    "ttft_from_send": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2e_from_send": ("request_latency", 1e3),
}
"""Its metrics by our names. Its "time per output token" contains the TTFT and has no counterpart here."""
NOTES = (
    'its "inter token latency" is what is TPOT here; its "time per output token" contains the TTFT',
    "gaps between single tokens are not in the file: ITL is unknown",
)


def fits(tree: Any) -> bool:
    """True for the tree of such a file."""
    return (
        isinstance(tree, dict)
        and "guidellm_version" in (tree.get("metadata") or {})
        and isinstance(tree.get("benchmarks"), list)
    )


def read(tree: Mapping[str, Any], path: Path) -> Iterator[Foreign]:
    """Read the loads of one file. Raises RunError for a file without requests, or without their times."""
    version = str(tree["metadata"]["guidellm_version"])
    if not tree["benchmarks"]:
        raise RunError(f"{path} holds no benchmark: nothing can be judged")
    for index, benchmark in enumerate(tree["benchmarks"]):
        strategy = benchmark["config"]["strategy"]
        part = f"{index}: {_arrivals(strategy)}" if len(tree["benchmarks"]) > 1 else ""
        yield _load(benchmark, strategy, path, version, part)


def _load(
    benchmark: Mapping[str, Any], strategy: Mapping[str, Any], path: Path, version: str, part: str
) -> Foreign:
    due_known = strategy["type_"] in RATED
    kinds = benchmark["requests"]
    stats = [(kind, one) for kind in ("successful", "errored", "incomplete") for one in kinds.get(kind) or ()]
    # A request that never began before the tool ended was not sent.
    sent = [(kind, one) for kind, one in stats if _timings(one, path).get("request_start") is not None]
    if not sent:
        raise RunError(f"{path} holds no request of its benchmark {part or '0'}: nothing can be judged")
    requests = foreign.table(_row(kind, one, due_known) for kind, one in sent)
    model = (benchmark["config"].get("backend") or {}).get("model")
    kind, rate = str(strategy["type_"]), strategy.get("rate")
    asked = OfferedLoad(rate, kind, strategy.get("streams"), model, due_known)
    notes = [*NOTES, *_due(due_known, requests), *foreign.assumed_length(requests)]
    notes += _left_out(benchmark, stats)
    notes += [f"its own warning: {one['message']}" for one in benchmark.get("warnings") or ()]
    return Foreign(path, TOOL, version, requests, due_known, asked, _own(benchmark), tuple(notes), part)


def _timings(one: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        return dict(one["info"]["timings"])
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{path} has no times of single requests: GuideLLM 0.8 saves them in info.timings"
        ) from error


def _row(kind: str, one: Mapping[str, Any], due_known: bool) -> Row:
    times = one["info"]["timings"]
    sent = times["request_start"]
    due = times["targeted_start"] if due_known and times.get("targeted_start") is not None else sent
    body = _body(one)
    row = _outcome(kind, one, body) | {
        "turn": one["info"].get("turn_index") or 0,
        "due_ns": foreign.ns(due),
        "scheduled_at": datetime.fromtimestamp(due, UTC),
        "send_offset_ns": foreign.ns(sent - due) if due_known else None,
        "requested_output_tokens": body.get("max_tokens") if body.get("ignore_eos") else None,
        "prompt_tokens": one.get("prompt_tokens"),
        "cached_tokens": one.get("cached_tokens"),
        "output_tokens": one.get("output_tokens"),
        "events": times.get("token_iterations"),
    }
    for ours, theirs in (("first_token", "first_token_iteration"), ("last_token", "last_token_iteration")):
        row[f"{ours}_offset_ns"] = None if times.get(theirs) is None else foreign.ns(times[theirs] - due)
    end = times.get("request_end") or times.get("resolve_end")
    return row | {"end_offset_ns": None if end is None else foreign.ns(end - due)}


def _outcome(kind: str, one: Mapping[str, Any], body: Mapping[str, Any]) -> Row:
    times, output = one["info"]["timings"], one.get("output_tokens")
    if kind == "incomplete":
        return {"status": records.PENDING}
    if kind == "errored":
        return foreign.failure(
            str(one["info"].get("error") or ""), None, times.get("first_token_iteration") is not None
        )
    if body.get("ignore_eos") and output and output != body.get("max_tokens"):
        return {
            "status": "truncated",
            "error_kind": "token_count",
            "error": f"{output} tokens instead of {body.get('max_tokens')}",
        }
    return foreign.shortage(output, foreign.ns(times.get("first_token_iteration")))


def _body(one: Mapping[str, Any]) -> dict[str, Any]:
    try:
        body = json.loads(one.get("request_args") or "{}").get("body")
    except (ValueError, AttributeError):
        body = None
    return body if isinstance(body, dict) else {}


def _arrivals(strategy: Mapping[str, Any]) -> str:
    kind = str(strategy["type_"])
    return f"{kind}, {strategy['rate']:g} requests/s" if strategy.get("rate") else kind


def _due(due_known: bool, requests: pa.Table) -> list[str]:
    if not due_known:
        return ["a closed loop has no due times: latencies count from the send"]
    lag_ms = quantile(metrics.send_lag(requests), 0.99)
    return [
        f"its planned times are reported: its client's lag was {lag_ms:.1f} ms (p99), not in its own figures"
    ]


def _left_out(benchmark: Mapping[str, Any], stats: Sequence[Any]) -> list[str]:
    """Notes on a file that holds a sample of the requests, or counts requests in flight at its end."""
    totals = benchmark["metrics"]["request_totals"]
    notes = []
    if totals["total"] > len(stats):
        notes.append(f"the file holds {len(stats)} of its {totals['total']} requests: figures are of those")
    if totals.get("incomplete"):
        notes.append(
            f"{totals['incomplete']} requests were in flight when it ended: neither answered nor failed"
        )
    return notes


def _own(benchmark: Mapping[str, Any]) -> dict[str, Trio]:
    quantiles = {}
    for ours, (theirs, scale) in OWN.items():
        figures = (benchmark["metrics"].get(theirs) or {}).get("successful") or {}
        if figures.get("count"):
            quantiles[ours] = foreign.percentiles(figures["percentiles"], ("p50", "p90", "p99"), scale)
    return quantiles
