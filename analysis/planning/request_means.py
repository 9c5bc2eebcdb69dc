"""Answers of a run that a plan rests on, and the means of their lengths."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.results.runs import Run
from analysis.rows import metrics, records

COLUMNS = (
    *(
        "window_index",
        "status",
        "time_scale",
        "turn_blocked_ns",
        "last_token_offset_ns",
        "engine_last_token_ns",
    ),
    *("requested_input_tokens", "prompt_tokens", "cached_tokens", "output_tokens"),
)


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """Means over requests in tokens; `prefix_hit` is the share of the prompt that was in the prefix cache.

    `source` says whether they were measured, on how many requests, or belong to the workload.
    """

    input_tokens: float
    output_tokens: float
    prefix_hit: float
    source: str


def answers(run: Run) -> pa.Table:
    """The complete answers in the windows that the capacity rests on."""
    rows, verdict = run.requests(columns=COLUMNS, phase="window"), run.verdict
    used = [
        row["index"]
        for row in (verdict.windows if verdict else ())
        if row["kind"] == "window" and row["valid"]
    ]
    seen = metrics.status_in(rows, records.OK)
    among = pc.is_in(rows.column("window_index"), value_set=pa.array(used, pa.int16())).to_numpy()
    return rows.filter(pa.array(seen & among))


def lengths(rows: pa.Table) -> MeanLengths | None:
    """Mean lengths by the server's count; without its count of prompts, by the planned ones."""
    prompt, output = metrics.numbers(rows, "prompt_tokens"), metrics.numbers(rows, "output_tokens")
    if not rows.num_rows or np.isnan(output).all():
        return None
    reported = not np.isnan(prompt).all()
    if not reported:
        prompt = metrics.numbers(rows, "requested_input_tokens")
    hit = metrics.prefix_hit(rows) if reported else None
    source = f"measured, means of {rows.num_rows} answers"
    return MeanLengths(float(np.nanmean(prompt)), float(np.nanmean(output)), hit or 0.0, source)
