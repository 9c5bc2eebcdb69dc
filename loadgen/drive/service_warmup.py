"""Warms a service up before its first window with untimed requests of the real shape.

Knows what the answers must show before anything is measured; `cache_warmup` warms up prefix caches.
"""

from collections import Counter

import pyarrow as pa

from analysis.rows import metrics, records
from loadgen.drive.driver import Driver
from loadgen.traffic.schedule import NS

WARMUP_QPS = 4.0
"""Highest rate of the warm-up; a service that is thought slower gets half of what is thought."""
WARMUP_LIMIT_S = 600.0
UNREPORTED = (
    "no answer reports its cached tokens: caches are not warmed up first, and whether prompts hit as "
    "intended is unknown; start vLLM with --enable-prompt-tokens-details"
)


def warm_up(driver: Driver) -> None:
    """Send the plan's warm-up requests until all are answered; then the budget begins."""
    feed, plan = driver.feed, driver.plan
    feed.free_ns = feed.began_ns = feed.next_start_ns()
    if not plan.warmup_requests:
        return
    guess = plan.start.prediction_qps or plan.start.roofline_qps or WARMUP_QPS
    gap_ns = int(NS / min(WARMUP_QPS, guess * plan.nodes / 2))
    schedule = feed.traffic.evenly(
        plan.warmup_requests,
        feed.free_ns,
        gap_ns,
        first_seq=feed.next_seq,
        seed=plan.seed,
        streams=plan.streams,
    )
    feed.offer(schedule, int(schedule.due_ns[-1]) + NS)
    driver.await_answers(-1, WARMUP_LIMIT_S, until_done=True)
    rows = driver.windows.ledger.rows(-1)  # those of an earlier session of the run among them
    _report(driver, rows.filter(pa.array(metrics.numbers(rows, "seq") >= schedule.seq[0])), len(schedule))
    feed.began_ns = feed.free_ns


def _report(driver: Driver, rows: pa.Table, requests: int) -> None:
    """Say how the warm-up ended; raises TargetLost for a service that cannot be measured."""
    states = Counter(rows["status"].to_pylist())
    counted = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    driver.emit("warm", text=f"warm-up: {requests} requests, {counted}")
    if driver.plan.workload.wants_hits and _hits_unreported(rows):
        driver.emit("fill", text=UNREPORTED)
    if other := rows.filter(pa.array(metrics.word_in(rows, "error_kind", "time_scale"))).to_pylist():
        driver.loss.lose(other[0]["error"])
    driver.loss.refuse_dead(-1, least=1)


def _hits_unreported(rows: pa.Table) -> bool:
    """True if requests were answered and none of the answers says what of the prompt was cached."""
    return bool(metrics.status_in(rows, records.OK).any()) and metrics.prefix_hit(rows) is None
