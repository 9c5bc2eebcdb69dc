"""What one core carries: our client against aiohttp that parses every event, in one run.

A compiled server on one core, the client on another; 25 kB bodies, 140 tokens, TTFT 200 ms, ITL 10 ms.
The truth is the server's own log. A rate is good if p90 TTFT (from the due time) and p90 TPOT are within
5 % of the truth and requests arrive on schedule within 1 %.

python -m tests.benchmarks.client_rate [--quick]
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tests.benchmarks._clients import Seen, begin, cores, poisson_ns
from tests.benchmarks._mock import Mock

TTFT_MS, ITL_MS, TOKENS = 200, 10, 140
LADDER_QPS = (64, 80, 100, 130, 160, 200, 250, 320, 400, 500, 640, 800, 1000)
MODERATE_QPS = 100
SECONDS, QUICK_SECONDS = 6.0, 2.0
EXCESS, BEHIND = 0.05, 0.01
MOST_TRIES = 4
OWN_CORE = 0.6
"""Below this share of its core a client measures its neighbours."""
HEAD = (
    f"{'client':>9} {'rate':>6} {'n':>5} {'sent':>7} {'CPU ms/req':>10} {'share':>5} "
    f"{'p90 TTFT ms (truth)':>22} {'p90 TPOT ms (truth)':>22}  verdict"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One client at one rate.

    `sent` is the rate at which requests arrived relative to the asked one, and may be `behind` below 1.
    """

    client: str
    rate_qps: float
    count: int
    failed: int
    sent: float
    cpu_ms: float
    run_share: float
    ttft_ms: float
    true_ttft_ms: float
    tpot_ms: float
    true_tpot_ms: float
    behind: float = BEHIND

    @property
    def faults(self) -> list[str]:
        """Why the rate is not good; empty if it is."""
        excess = {"TTFT": self.ttft_ms / self.true_ttft_ms - 1, "TPOT": self.tpot_ms / self.true_tpot_ms - 1}
        faults = [f"{name} {by:+.1%}" for name, by in excess.items() if abs(by) > EXCESS]
        faults += [f"{1 - self.sent:.1%} behind schedule"] if self.sent < 1 - self.behind else []
        return faults + ([f"{self.failed} failed"] if self.failed else [])

    @property
    def shared(self) -> bool:
        """The row says more about other processes on the core than about the client."""
        return self.run_share < OWN_CORE

    def __str__(self) -> str:
        verdict = ", ".join(self.faults) or "good"
        return (
            f"{self.client:>9} {self.rate_qps:6.0f} {self.count:5d} {self.sent:7.1%} {self.cpu_ms:10.2f} "
            f"{self.run_share:5.2f} {self.ttft_ms:12.1f} ({self.true_ttft_ms:7.1f}) "
            f"{self.tpot_ms:12.2f} ({self.true_tpot_ms:7.2f})  "
            f"{'core not its own; ' if self.shared else ''}{verdict}"
        )


def measure(client: str, rate_qps: float, seconds: float, seed: int = 1) -> Row:
    """One client at one rate for `seconds`, against a fresh server."""
    due_ns = poisson_ns(rate_qps, seconds, seed)
    server_core, client_core = cores()
    with Mock(server_core, ttft_ms=TTFT_MS, itl_ms=ITL_MS, tokens=TOKENS) as mock:
        seen: Seen = begin(client, client_core, mock.url, due_ns, TOKENS).result()
        truth = mock.truth()
    if not len(truth.read_ns):
        raise SystemExit(f"{client}: no answer was whole: {dict(seen.statuses)}")
    asked_ns = due_ns[-1] - due_ns[0]
    return Row(
        client=client,
        rate_qps=rate_qps,
        count=len(due_ns),
        failed=len(due_ns) - seen.statuses["ok"],
        sent=float(asked_ns / np.ptp(truth.read_ns)),
        cpu_ms=seen.cpu_s / len(due_ns) * 1e3,
        run_share=seen.run_share,
        ttft_ms=p90(seen.ttft_ms),
        true_ttft_ms=p90(truth.ttft_ms),
        tpot_ms=p90(seen.tpot_ms),
        true_tpot_ms=p90(truth.tpot_ms),
    )


def p90(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.9))


def climb(client: str, seconds: float, from_qps: float) -> Iterator[Row]:
    """Rows up the ladder until a rate is bad twice, with other arrivals each time.

    A bad row on a core that was not the client's own does not count.
    """
    for rate_qps in (rate for rate in LADDER_QPS if rate >= from_qps):
        bad = 0
        for seed in range(1, MOST_TRIES + 1):
            row = measure(client, rate_qps, seconds, seed)
            print(row, flush=True)
            yield row
            bad += bool(row.faults and not row.shared)
            if not row.faults or bad == 2:
                break
        if row.faults:
            return


def best(rows: list[Row]) -> Row | None:
    """The row of the highest rate that was good."""
    return max((row for row in rows if not row.faults), key=lambda row: row.rate_qps, default=None)


def moderate(rows: list[Row]) -> Row:
    return min(rows, key=lambda row: abs(row.rate_qps - MODERATE_QPS))


def compare(ours: list[Row], theirs: list[Row]) -> str:
    """What is better by how much, in two lines; costs at the rates nearest to the moderate one."""
    name, mine, other = theirs[0].client, moderate(ours), moderate(theirs)
    best_mine, best_other = best(ours), best(theirs)
    rates = [f"{row.rate_qps:.0f}/s" if row else "none" for row in (best_mine, best_other)]
    return (
        f"CPU per request: ours {mine.cpu_ms:.2f} ms at {mine.rate_qps:.0f}/s, {name} {other.cpu_ms:.2f} ms "
        f"at {other.rate_qps:.0f}/s: {other.cpu_ms / mine.cpu_ms:.2f} x"
        + (f"; ours at its highest good rate {best_mine.cpu_ms:.2f} ms" if best_mine else "")
        + ("; others used our core: the ratio says little" if mine.shared else "")
        + f"\nhighest good rate of one core: ours {rates[0]}, {name} {rates[1]}"
        + (f": {best_mine.rate_qps / best_other.rate_qps:.2f} x" if best_mine and best_other else "")
    )


if __name__ == "__main__":
    seconds = QUICK_SECONDS if "--quick" in sys.argv else SECONDS
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    print(HEAD)
    ours = list(climb("ours", seconds, from_qps=MODERATE_QPS))
    theirs = list(climb("aiohttp", seconds, from_qps=LADDER_QPS[0]))
    print(compare(ours, theirs))
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
