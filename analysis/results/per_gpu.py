"""Output tokens per second and GPU, and what one user feels of them: the two axes that InferenceX uses."""

import math

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS
from analysis.rows import metrics
from analysis.rows.metrics import Floats
from conf import Experiment

COLUMNS = (
    *("due_ns", "status", "time_scale", "turn_blocked_ns", "output_tokens"),
    *("first_token_offset_ns", "engine_first_token_ns", "last_token_offset_ns", "engine_last_token_ns"),
)
"""Columns of a request that `Came` is made of."""


class Came:
    """Output tokens of whole answers at the time they came, whichever window their requests were due in.

    They come evenly between the first and the last. By due time an overloaded service would seem to make more
    in a window than its GPUs can.
    """

    def __init__(self, requests: pa.Table) -> None:
        rows = requests.filter(pa.array(metrics.status_in(requests, "ok")))
        due = metrics.numbers(rows, "due_ns")
        self._first: Floats = (due + metrics.token_offset_ns(rows, "first")) / NS
        self._last: Floats = (due + metrics.token_offset_ns(rows, "last")) / NS
        self._output: Floats = metrics.numbers(rows, "output_tokens")

    def outputs(self, start_s: float, end_s: float) -> float:
        """Output tokens that came from `start_s` on and before `end_s`; a single one comes with the first."""
        span = self._last - self._first
        inside = np.minimum(self._last, end_s) - np.maximum(self._first, start_s)
        part = np.where(span > 0, np.clip(inside, 0, None) / np.where(span > 0, span, 1), 0.0)
        began = (self._first >= start_s) & (self._first < end_s)
        return float(np.nansum(self._output * np.where(span > 0, part, began)))


def interactivity(tpot_ms: float | None) -> float | None:
    """Tokens/s of one user at a TPOT: 0 where failures made it infinite, None where it is not known."""
    if tpot_ms is None or not tpot_ms > 0:
        return None
    return 0.0 if math.isinf(tpot_ms) else 1e3 / tpot_ms


def unknown(asked: Experiment) -> str:
    """The reason why the number of GPUs is unknown; empty if it is known."""
    reasons = {
        "external": "how many GPUs stand behind the endpoints is not known",
        "vllm_cpu": "the engine ran on a CPU",
    }
    return reasons.get(asked.engine.kind, "")


def gpus(asked: Experiment, nodes: int) -> int | None:
    """GPUs that serve on so many nodes: those of all its engines, not those that a node has besides.

    None where they are `unknown`.
    """
    layout = asked.layout
    return None if unknown(asked) else nodes * layout.gpus_per_node
