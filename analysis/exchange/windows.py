"""Valid windows of a run in the shape of other tools' formats: one load each, latencies from the send.

Void windows and ramp steps are left out: no other format can mark them, and neither measured a rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity import dwell_table
from analysis.capacity.window_counts import in_window
from analysis.results.runs import Run, RunError
from analysis.rows import metrics, records
from analysis.rows.metrics import Bools, Floats


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """One window: its line of dwells.parquet, and its requests in order of due time."""

    line: dict[str, Any]
    rows: pa.Table

    @property
    def seconds(self) -> float:
        """Length of the window by the run's clock."""
        return dwell_table.window(self.line).seconds

    @property
    def ok(self) -> Bools:
        """Mask of the complete answers."""
        return metrics.status_in(self.rows, records.OK)

    @property
    def sent(self) -> Bools:
        """Mask of the requests that left the client."""
        return ~np.isnan(metrics.numbers(self.rows, "send_offset_ns"))

    @property
    def latencies_ms(self) -> dict[str, Floats]:
        """TTFT, TPOT, ITL and E2E from the send, by the names of `vllm bench serve`."""
        e2e = metrics.e2e(self.rows)
        from_send = np.where(np.isinf(e2e), e2e, e2e - np.where(self.sent, metrics.send_lag(self.rows), 0.0))
        return {
            "ttft": metrics.ttft_from_send(self.rows),
            "tpot": metrics.tpot(self.rows),
            "itl": metrics.itl(self.rows),
            "e2el": from_send,
        }

    @property
    def in_flight(self) -> float:
        """Mean number of requests in flight, by Little's law: rate times the mean time from send to end."""
        held = metrics.numbers(self.rows, "end_offset_ns") - metrics.numbers(self.rows, "send_offset_ns")
        return float(np.nansum(held)) / 1e9 / self.seconds

    def tokens(self, column: str) -> int:
        """Tokens of the complete answers in a column; 0 if none is reported."""
        return int(np.nansum(metrics.numbers(self.rows, column)[self.ok]))


def valid_lines(run: Run) -> list[dict[str, Any]]:
    """Lines of dwells.parquet of the valid windows with requests, ramp steps left out."""
    lines = run.dwells().to_pylist()
    return [line for line in lines if line["kind"] != "ramp" and line["valid"] and line["requests"]]


def measured(run: Run) -> Iterator[MeasuredWindow]:
    """The valid windows of a run. Raises RunError if there is none."""
    valid = valid_lines(run)
    if not valid:
        ended = sum(line["kind"] != "ramp" for line in run.dwells().to_pylist())
        void = f"all {ended} of its windows are void" if ended else "no window of it ended"
        raise RunError(f"{run.path} has no rate to export: {void}; --format csv has its requests")
    for line in valid:
        window = dwell_table.window(line)
        yield MeasuredWindow(line, in_window(run.requests(dwell=window.index), window))
