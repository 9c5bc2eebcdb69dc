"""Read AIPerf's records (`profile_export.jsonl`, a line per request) as AIPerf 0.13.0 writes them.

`metadata.request_start_ns` is the send and `metadata.credit_issued_ns` the release by its scheduler, by the
wall clock; `metrics.*.value` in ms count from the send. Its version and its own percentiles are in a summary
file beside this one, which is read if it exists.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.exchange import foreign
from analysis.exchange.foreign import NS_PER_MS, NS_PER_S, WARMUP, WINDOW, Foreign, OfferedLoad, Row, Trio
from analysis.results.runs import RunError
from analysis.rows import records

TOOL = "AIPerf"
SUMMARY_FILE = "profile_export_aiperf.json"
"""The summary beside the records; not needed."""
NEEDED = ("request_start_ns", "benchmark_phase")
ANSWERED = ("time_to_first_token", "request_latency")
OWN = {
    "ttft_from_send": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e_from_send": "request_latency",
}
NOTES = (foreign.DUE_UNKNOWN, foreign.LENGTH_UNKNOWN, 'its "inter token latency" is what is TPOT here')


def fits(lines: Sequence[Any]) -> bool:
    """True for the lines of such a file."""
    return bool(lines) and all(
        isinstance(line, dict) and isinstance(line.get("metadata"), dict) and "metrics" in line
        for line in lines
    )


def read(lines: Sequence[Mapping[str, Any]], path: Path) -> Foreign:
    """Read one load. Raises RunError for records that lack a needed field, or that are all warm-up."""
    for line in lines:
        _refuse(line, path)
    rows = [_row(line) for line in lines]
    if not any(row["phase"] == WINDOW for row in rows):
        raise RunError(f"{path} holds no request after its warm-up: nothing can be judged")
    requests, summary = foreign.table(rows), _summary(path.with_name(SUMMARY_FILE), rows)
    known = [line["metadata"] for line in lines if line["metadata"].get("credit_issued_ns") is not None]
    waits_ns = [one["request_start_ns"] - one["credit_issued_ns"] for one in known]
    notes = [*NOTES, *foreign.assumed_length(requests), *foreign.released(waits_ns, 1 / NS_PER_MS)]
    notes += _counted(lines)
    if not summary:
        notes.append(
            f"its own figures, its version and the asked rate are in {SUMMARY_FILE}, not beside this file"
        )
    version = str(summary.get("aiperf_version", "unknown"))
    return Foreign(path, TOOL, version, requests, False, _asked(summary), _own(summary), tuple(notes))


def _refuse(line: Mapping[str, Any], path: Path) -> None:
    missing = [name for name in NEEDED if line["metadata"].get(name) is None]
    if not line.get("error"):
        missing += [name for name in ANSWERED if name not in line["metrics"]]
    if missing:
        raise RunError(
            f"{path} lacks {missing[0]}: not a streamed run, or of an AIPerf unlike 0.13, which is read here"
        )


def _row(line: Mapping[str, Any]) -> Row:
    meta = line["metadata"]
    start = int(meta["request_start_ns"])
    return {
        **_outcome(line),
        "phase": WINDOW if meta["benchmark_phase"] == "profiling" else WARMUP,
        "turn": meta.get("turn_index") or 0,
        "due_ns": start,
        "scheduled_at": datetime.fromtimestamp(start / NS_PER_S, UTC),
    }


def _outcome(line: Mapping[str, Any]) -> Row:
    error = line.get("error")
    if line["metadata"].get("was_cancelled"):
        return {"status": records.PENDING}
    if error:
        return foreign.failure(str(error.get("message") or error.get("type")), _code(error.get("code")))
    values = {name: metric["value"] for name, metric in line["metrics"].items()}
    first, last = (round(values[name] * NS_PER_MS) for name in ANSWERED)
    output = values.get("usage_completion_tokens", values.get("output_sequence_length"))
    gaps_ms = values.get("inter_chunk_latency")
    return {
        **foreign.shortage(output, first),
        "first_token_offset_ns": first,
        "last_token_offset_ns": last,
        "end_offset_ns": last,
        "prompt_tokens": values.get("usage_prompt_tokens", values.get("input_sequence_length")),
        "cached_tokens": values.get("usage_prompt_cache_read_tokens"),
        "output_tokens": output,
        "events": None if gaps_ms is None else len(gaps_ms) + 1,
        "itl_us": None if gaps_ms is None else [round(1e3 * gap) for gap in gaps_ms],
    }


def _code(value: Any) -> int | None:
    """The HTTP status of an error; AIPerf gives errors of other kinds other codes, or none."""
    return int(value) if isinstance(value, int) and 400 <= value < 600 else None


def _summary(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """The summary beside the records; empty if there is none, or one of another number of requests."""
    try:
        tree = json.loads(path.read_bytes())
        counted = tree["request_count"]["avg"] + tree.get("error_request_count", {}).get("avg", 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return tree if counted == sum(row["phase"] == WINDOW for row in rows) else {}


def _asked(summary: Mapping[str, Any]) -> OfferedLoad:
    config = summary.get("input_config") or {}
    phase: dict[str, Any] = next((p for p in config.get("phases") or () if p.get("kind") == "profiling"), {})
    models = [item.get("name") for item in (config.get("models") or {}).get("items") or ()]
    rate, held = phase.get("rate"), phase.get("concurrency")
    return OfferedLoad(
        rate_qps=rate,
        arrivals=str(phase.get("type", "unknown")),
        concurrency=held,
        model=models[0] if models else None,
        open_loop=rate is not None and held is None if phase else None,
    )


def _own(summary: Mapping[str, Any]) -> dict[str, Trio]:
    return {
        ours: foreign.percentiles(summary[theirs], ("p50", "p90", "p99"))
        for ours, theirs in OWN.items()
        if theirs in summary
    }


def _counted(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    if all("usage_completion_tokens" in line["metrics"] for line in lines if not line.get("error")):
        return []
    return ["output tokens were counted by the client's tokenizer, not reported by the server"]
