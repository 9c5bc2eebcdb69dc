"""Write a run in the format of `vllm bench serve --save-detailed --append-result`: one line per window.

Keys and meanings are that tool's: seconds from the send, and summary figures of answered requests only, which
flatter a service that fails; failures are in `errors`. Figures that were not measured are null.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from analysis.exchange.foreign import EXPORTED
from analysis.exchange.windows import MeasuredWindow, measured
from analysis.results.runs import Run
from analysis.rows import metrics
from analysis.rows.metrics import Floats
from analysis.stats.quantiles import quantile
from conf import Experiment

PERCENTILES = (50, 90, 99)
UNKNOWN = ("tokenizer_id", "request_goodput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx")

Tree = dict[str, Any]


def lines(run: Run) -> Iterator[str]:
    """Strict JSON, one object per measured window."""
    asked = run.config
    for window in measured(run):
        yield f"{json.dumps(result(run, asked, window), allow_nan=False)}\n"


def result(run: Run, asked: Experiment, window: MeasuredWindow) -> Tree:
    """One window with that tool's keys."""
    line, seconds = window.line, window.seconds
    inputs, outputs = window.tokens("prompt_tokens"), window.tokens("output_tokens")
    answered = int(window.ok.sum())
    started = str(run.manifest.get("started_at", ""))[:19]
    api = "openai-chat" if asked.workload.prompt == "chat" else "openai"
    summary = {
        "date": started.translate({ord("-"): None, ord(":"): None, ord("T"): "-"}),
        "endpoint_type": api,
        "backend": api,
        "label": f"{run.name} dwell {line['index']}",
        "model_id": asked.model.served_name,
        "num_prompts": window.rows.num_rows,
        "request_rate": "inf" if line["concurrency"] else line["rate_qps"],
        "burstiness": asked.workload.arrivals.burstiness,
        "max_concurrency": line["concurrency"] or None,
        "duration": seconds,
        "completed": answered,
        "failed": window.rows.num_rows - answered,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": answered / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
    }
    return summary | dict.fromkeys(UNKNOWN) | _requests(window) | _summary(window)


def _requests(window: MeasuredWindow) -> Tree:
    """Lists with one element per request; a failed one has that tool's 0 or empty list."""
    rows, ok = window.rows, window.ok
    lag_s = np.where(window.sent, metrics.send_lag(rows), 0.0) / 1e3
    whole_s = np.where(ok, window.latencies_ms["e2el"], 0.0) / 1e3
    return {
        "input_lens": _whole(np.where(ok, metrics.numbers(rows, "prompt_tokens"), 0.0)),
        "output_lens": _whole(np.where(ok, metrics.numbers(rows, "output_tokens"), 0.0)),
        "ttfts": _first_s(window).tolist(),
        "itls": [[gap / 1e6 for gap in gaps or ()] for gaps in rows["itl_us"].to_pylist()],
        "latencies": whole_s.tolist(),
        "start_times": (metrics.numbers(rows, "due_ns") / 1e9 + lag_s).tolist(),
        "queue_times": lag_s.tolist(),
        "generated_texts": [""] * rows.num_rows,
        "errors": [_error(row) for row in rows.select(["status", "error_kind", "error"]).to_pylist()],
    }


def _first_s(window: MeasuredWindow) -> Floats:
    """TTFT from the send, also of a failed answer that had begun; 0 without a token."""
    rows = window.rows
    begun_ms = metrics.token_offset_ns(rows, "first") / metrics.NS_PER_MS - metrics.send_lag(rows)
    return np.where(window.ok, window.latencies_ms["ttft"], np.nan_to_num(begun_ms, neginf=0.0)) / 1e3


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in np.nan_to_num(values)]


def _error(row: Tree) -> str:
    """Empty for an answer; else status and kind, in the words that our own reader knows."""
    if row["status"] == "ok":
        return ""
    kind = f" {row['error_kind']}" if row["error_kind"] else ""
    return f"{EXPORTED} {row['status']}{kind}: {row['error'] or ''}"


def _summary(window: MeasuredWindow) -> Tree:
    found: Tree = {}
    for name, latency_ms in window.latencies_ms.items():
        known = latency_ms[np.isfinite(latency_ms)]
        several = len(known) > 0
        found[f"mean_{name}_ms"] = float(known.mean()) if several else None
        found[f"median_{name}_ms"] = quantile(known, 0.5)
        found[f"std_{name}_ms"] = float(known.std()) if several else None
        found |= {f"p{q}_{name}_ms": quantile(known, q / 100) for q in PERCENTILES}
    return found
