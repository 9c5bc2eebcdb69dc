"""Figures of the load generator in a window: actors lost, requests sent late or not at all, a busy CPU."""

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa

from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from conf.specs.experiment import Slo

Health = Mapping[str, Mapping[str, float]]
"""Figures of each load actor by its name."""

LAG_MS, LAG_SHARE = 5.0, 0.01
"""A p99 send lag above max(5 ms, 1 % of the TTFT bound) voids (the method, 5.2), on the run's clock."""
LEAST_LAG_MS = 1.0
"""Send lag that is allowed on any clock, in real time: the event loop's timers count milliseconds."""
CPU_SHARE = 0.60
RUN_SHARE = 0.60
"""Below this share of the wanted CPU time a client measures its neighbours too."""
STALL_SHARE = 0.05
"""A stall of the client's loop above this share of the TTFT bound is worth a line (our choice)."""


def lost_actors(rows: pa.Table, lost: Collection[str]) -> float:
    """Load actors that died or fell silent in the window, and requests that ended with one later."""
    orphans = metrics.status_in(rows, "lost") | metrics.word_in(rows, "error_kind", "interrupted")
    return float(len(lost) + int(orphans.sum()))


CUT_SHARE, CUT_LEAST = 0.9, 3
"""Share of an actor's requests in a row that failed without a way, and their least number (our choice)."""
NO_WAY = "No route to host", "Network is unreachable", "Network is down"
"""What Linux says of a network that is cut on its own side (EHOSTUNREACH, ENETUNREACH, ENETDOWN)."""


def lost_hosts(rows: pa.Table, lost: Collection[str]) -> float:
    """Load hosts that could not be reached, or else load actors that had no network of their own."""
    return float(len(lost) or len(cut_off(rows)))


def cut_off(rows: pa.Table) -> list[int]:
    """Load actors whose requests found no way to a service that answered others meanwhile.

    One that finds none while no other is answered may stand before a server without a network.
    """
    client, due_ns = metrics.numbers(rows, "client_id"), metrics.numbers(rows, "due_ns")
    no_way = _without_a_way(rows)
    served = metrics.status_in(rows, records.OK)
    cut = []
    for actor in np.unique(client[no_way]):
        mine = client == actor
        times = due_ns[mine & no_way]
        during = (due_ns >= times.min()) & (due_ns <= times.max())
        failed = int((mine & no_way).sum())
        if (
            failed >= max(CUT_LEAST, CUT_SHARE * int((mine & during).sum()))
            and (served & during & ~mine).any()
        ):
            cut.append(int(actor))
    return cut


def _without_a_way(rows: pa.Table) -> metrics.Bools:
    failed = metrics.status_in(rows, "conn_error")
    if not failed.any():
        return failed
    words = rows["error"].to_pylist()
    return failed & np.array([any(said in (word or "") for said in NO_WAY) for word in words], dtype=np.bool_)


def send_lag(rows: pa.Table) -> float | None:
    """p99 of the send lag in ms of real time; a request that never left counts as infinitely late."""
    return quantile(metrics.send_lag(rows), 0.99)


def lag_gate_ms(rows: pa.Table, slo: Slo) -> float:
    """The largest p99 of the send lag with which a window is valid.

    On a clock of speed D a lag displaces an arrival by D times as much: the bound is the D-th part.
    """
    return max(max(LAG_MS, LAG_SHARE * slo.first_token_ms) / metrics.whole_time_scale(rows), LEAST_LAG_MS)


def sent(rows: pa.Table, planned: int | None = None) -> float | None:
    """Share of the plan that was sent. A refused connection was tried; a row not yet sent is unknown."""
    lag = metrics.send_lag(rows)
    unsent = np.isinf(lag)
    undecided = np.isnan(lag) & metrics.status_in(rows, records.PENDING)
    total = (rows.num_rows if planned is None else planned) - int(undecided.sum())
    made = rows.num_rows - int((unsent | undecided).sum())
    return made / total if total > 0 else None


def cpu(health: Health | None) -> float | None:
    """Mean share of a core that the busiest actor used."""
    return _worst(health, "cpu_share")


def run_share(health: Health | None) -> float | None:
    """Lowest run / (run + queued) CPU share over the load actors."""
    return min(_figures(health, "run_share"), default=None)


def stall(health: Health | None) -> float | None:
    """Longest stall of an actor's loop in ms."""
    return _worst(health, "stall_ms")


def _worst(health: Health | None, figure: str) -> float | None:
    return max(_figures(health, figure), default=None)


def _figures(health: Health | None, figure: str) -> list[float]:
    return [actor[figure] for actor in (health or {}).values() if figure in actor]
