"""The running window as known at one moment: counts, latencies so far, and how much is still out.

`loadgen/drive` counts them, and nothing here judges a window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FILE = "live.json"
"""The newest `WindowSoFar` in a run folder while the run goes on, replaced whole every second or two."""
KIND = "window_so_far"
"""The event of a run that carries one; it goes to whoever watches, and not into events.jsonl."""


@dataclass(frozen=True, slots=True)
class LatencySoFar:
    """One bounded latency over the requests of a window whose value is known already, in ms.

    `over_pct` is the share of these that are over the bound, in percent. Figures are None while nothing is
    known.
    """

    bound_ms: float
    known: int
    p50_ms: float | None
    p90_ms: float | None
    over_pct: float | None


@dataclass(frozen=True, slots=True)
class WindowSoFar:
    """A window while it runs. Times are seconds on the run's clock; rates are QPS per node.

    `sent` counts requests of the window that were due by now, `answered` and `failed` those that ended, and
    `pending` the rest. `in_flight` counts all requests of the fleet that are open, of any window.
    `latencies` are by the bound's key in the configuration (`ttft_p90_ms`). `elapsed_s` of `budget_s` are
    spent (None where the verb has no budget). `failures` are those that failed, by kind.
    """

    index: int
    kind: str
    rate_qps_per_node: float | None
    achieved_qps_per_node: float | None
    now_s: float
    window_start_s: float
    window_end_s: float
    sent: int
    answered: int
    failed: int
    pending: int
    in_flight: int | None
    latencies: Mapping[str, LatencySoFar]
    lag_p99_ms: float | None
    lag_gate_ms: float
    elapsed_s: float
    budget_s: float | None
    failures: Mapping[str, int] = field(default_factory=dict)

    @property
    def pending_pct(self) -> float | None:
        """Share of the requests sent whose answer is still out, in percent."""
        return 100 * self.pending / self.sent if self.sent else None
