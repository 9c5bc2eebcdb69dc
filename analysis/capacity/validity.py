"""The checks that make a window, or a whole run, worth believing; each with its figure and its bound.

Knows request rows, load-generator health and expected replicas; knows no limit's outcome. A window
that fails a gate is void: neither pass nor fail, never averaged in. Unknown is None, never True.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from analysis.capacity.window_counts import NS, PATH_MS, Window, in_window
from analysis.rows import foreign_words, metrics, records, routing_spread
from analysis.stats.quantiles import quantile
from conf.specs.experiment import Slo

LAG_MS, LAG_SHARE = 5.0, 0.01
"""Void above p99 send lag of max(5 ms, 1 % of the TTFT bound) (the method, 5.2), on the run's clock."""
LEAST_LAG_MS = 1.0
"""However fast the clock, a send may be as late as this: the event loop's timers count milliseconds."""
PATH_SHARE = 0.1
"""Of the TTFT bound, on the run's clock, at p90 outside the engine: void above (our choice)."""
PATH_OVER = 0.01
"""Share of the answers that the way alone made late: void above, like steps of the engine that were late."""
LEAST_SENT = 0.995
LEAST_ACHIEVED = 0.98
LITTLE_ERROR = 0.05
LATE_STEPS = 0.01
"""A step is late by more than half of itself: above this share of them the p99 of the lateness is too."""
BURST_SHARE = 0.01
PROMPT_ERROR = 0.01
"""Mean prompt length by the server's count may differ from the plan by this share (our choice)."""
HIT_ERROR = 0.01
"""Share of the prompt tokens that came from the prefix cache, against the intended one (the method, 5.2)."""
BLOCK_TOKENS = 16
"""vLLM's default block: a prefix cache serves whole ones, the rest of what is shared is computed anew."""
CPU_SHARE = 0.60
RUN_SHARE = 0.60
"""A client that had its core for a smaller part of the time it wanted it measured its neighbours too."""
STALL_SHARE = 0.05
"""A stall of the client's loop above this share of the TTFT bound is worth a line (our choice)."""
UNSTABLE_T = 3.0
LEAST_ROUNDS, LEAST_STEADY_S = 10.0, 30.0
"""Requests per request in flight, and seconds after the ramp-up, of a closed loop (the method, 5.1 L2)."""
LEAST_VALID_DWELLS = 2
BACKLOG = "backlog_slope_t"

REMEDIES = {
    "client_limited": "Give the load generator more actors or CPUs, or fewer neighbours on its node.",
    "engine_late": "The simulated engine missed its own clock: give it more CPUs or fewer replicas.",
    "path_slow": "Time was lost before the engine: see what stood still or lacked CPU, replica or proxy.",
    "replica_lost": "A replica was replaced or unknown: look at its log, redeploy, and run again.",
    "actor_lost": "A load actor died: look at its node's memory and log, and resume the run.",
    "burst_delivery": "Tokens came merged, TPOT is not believed: look for buffering in the proxy or server.",
    "wrong_prompts": "The server counts other prompt lengths than planned: use workload.prompt=token_ids.",
    "wrong_prefix_hits": "The prefix cache was not hit as intended: reset it, warm every replica, run again.",
    "too_few_dwells": "Raise search.budget_s.",
}
SLOWER = dict.fromkeys(("client_limited", "engine_late"), "A lower engine.time_scale helps too.")
"""What else can be done where the run's clock was faster than the real one."""


@dataclass(frozen=True, slots=True)
class Check:
    """One figure against its bound, a `least` one or else a most. `passed` None: unknown or not applicable.

    `reason` names why a window is void if the check fails; empty marks mere information.
    """

    name: str
    passed: bool | None
    value: float | None
    bound: float | None
    unit: str
    reason: str = ""
    least: bool = False

    @property
    def voids(self) -> bool:
        """True if this check alone makes its window void."""
        return self.passed is False and bool(self.reason)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid, or void for `reason` (a key of `REMEDIES`; empty when valid), with all checks.

    `time_scale` is how many times as fast as the real clock the run's was.
    """

    valid: bool
    reason: str
    checks: tuple[Check, ...]
    time_scale: float = 1.0

    @property
    def remedy(self) -> str:
        """What the user can do; empty when valid."""
        slower = SLOWER.get(self.reason, "") if self.time_scale > 1 else ""
        return f"{REMEDIES.get(self.reason, '')} {slower}".strip()


def judge_window(
    requests: pa.Table,
    window: Window,
    slo: Slo,
    *,
    planned: int | None = None,
    expected_replicas: Collection[str] | None = None,
    health: Mapping[str, Mapping[str, float]] | None = None,
    lost_actors: Collection[str] = (),
    in_flight_mean: float | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> Verdict:
    """Valid or void, from the run's rows, of which the window's are taken.

    `planned` requests were due in the window (default: the rows there are); `health` maps an actor
    to its cpu_share and run_share (means over the window, 0 to 1) and stall_ms (the longest); unknown
    figures are left out. `in_flight_mean` is an average counted apart from the rows, by the server or by
    the sender. `block_tokens` are those of a block of the engine's prefix cache.
    """
    rows = in_window(requests, window)
    checks = (
        check_lost_actors(rows, lost_actors),
        check_send_lag(rows, slo),
        check_sent(rows, planned),
        check_cpu(health),
        check_run_share(health),
        check_stall(health, slo),
        check_engine(rows),
        check_path(rows, slo),
        check_path_over(rows, slo),
        check_replicas(rows, expected_replicas),
        check_burst(rows),
        check_prompts(rows),
        check_prefix_hits(rows, block_tokens),
        check_achieved(rows),
        check_little(requests, window, in_flight_mean),
        check_backlog(requests, window),
        *check_words(rows),
    )
    reason = next((check.reason for check in checks if check.voids), "")
    return Verdict(not reason, reason, checks, _time_scale(rows))


def judge_closed(requests: pa.Table, window: Window, slo: Slo, **evidence: Any) -> Verdict:
    """The same of a closed loop (`window.concurrency`); `evidence` is that of `judge_window`.

    The window begins after the ramp-up and ends when the last request is sent. What only a closed loop
    can get wrong is information: its figures are for comparison and no capacity. Its backlog is fixed.
    """
    opened = judge_window(requests, window, slo, **evidence)
    checks = (
        *(check for check in opened.checks if check.name != BACKLOG),
        check_concurrency(requests, window),
        check_rounds(requests, window),
        check_steady(window),
    )
    return replace(opened, checks=checks)


def judge_run(dwells: Sequence[Verdict], min_dwells: int) -> Verdict:
    """Valid if at least max(2, `min_dwells`) dwells are not void; else the first void dwell's reason."""
    needed = max(LEAST_VALID_DWELLS, min_dwells)
    valid = sum(verdict.valid for verdict in dwells)
    reason = next((verdict.reason for verdict in dwells if not verdict.valid), "too_few_dwells")
    enough = valid >= needed
    check = Check("valid_dwells", enough, float(valid), float(needed), "", reason, least=True)
    scale = max((verdict.time_scale for verdict in dwells), default=1.0)
    return Verdict(enough, "" if enough else reason, (check,), scale)


def check_lost_actors(rows: pa.Table, lost: Collection[str]) -> Check:
    """Load actors that died or fell silent in the window, and requests that ended with one later."""
    orphans = metrics.status_in(rows, "lost") | metrics.word_in(rows, "error_kind", "interrupted")
    count = len(lost) + int(orphans.sum())
    return Check("lost_actors", not count, float(count), 0.0, "", "actor_lost")


def check_send_lag(rows: pa.Table, slo: Slo) -> Check:
    """p99 of the send lag in real time; a request that never left counts as infinitely late.

    On a clock of speed D it displaces an arrival by D times as much: the bound is the D-th part.
    """
    bound = max(max(LAG_MS, LAG_SHARE * slo.ttft_p90_ms) / _time_scale(rows), LEAST_LAG_MS)
    return _at_most("send_lag_p99", quantile(metrics.send_lag(rows), 0.99), bound, "ms", "client_limited")


def check_sent(rows: pa.Table, planned: int | None = None) -> Check:
    """Share of the plan that was sent. A refused connection was tried; a row not yet sent is unknown."""
    lag = metrics.send_lag(rows)
    unsent = np.isinf(lag)
    undecided = np.isnan(lag) & metrics.status_in(rows, records.PENDING)
    total = (rows.num_rows if planned is None else planned) - int(undecided.sum())
    made = rows.num_rows - int((unsent | undecided).sum())
    return _at_least("sent", made / total if total > 0 else None, LEAST_SENT, "", "client_limited")


def check_cpu(health: Mapping[str, Mapping[str, float]] | None) -> Check:
    """Mean share of a core that the busiest actor used."""
    return _at_most("actor_cpu", _worst(health, "cpu_share"), CPU_SHARE, "", "client_limited")


def check_run_share(health: Mapping[str, Mapping[str, float]] | None) -> Check:
    """Of the time the most crowded actor wanted its core, the share it had it; information, see the lag."""
    shares = _figures(health, "run_share")
    return _at_least("run_share", min(shares, default=None), RUN_SHARE, "")


def check_stall(health: Mapping[str, Mapping[str, float]] | None, slo: Slo) -> Check:
    """Longest stall of an actor's loop; information, because what it spoilt shows in the send lag."""
    return _at_most("loop_stall", _worst(health, "stall_ms"), STALL_SHARE * slo.ttft_p90_ms, "ms")


def check_engine(rows: pa.Table) -> Check:
    """Share of the simulated engine's steps that were late; unknown for any other engine.

    Each step counts once for every request that it gave a token.
    """
    steps = np.nansum(metrics.numbers(rows, "engine_steps"))
    late = np.nansum(metrics.numbers(rows, "engine_late_steps"))
    return _at_most(
        "engine_late_steps", float(late / steps) if steps > 0 else None, LATE_STEPS, "", "engine_late"
    )


def check_path(rows: pa.Table, slo: Slo) -> Check:
    """p90 of the real time outside an engine that told its own, which no slow engine makes longer.

    What of it lies before the engine displaces the arrival, on a clock of speed D by D times as much: the
    bound is the D-th part, but `PATH_MS`, which a fast clock grants to those that wait, are granted here too.
    """
    bound = max(PATH_SHARE * slo.ttft_p90_ms / _time_scale(rows), PATH_MS)
    return _at_most("path_p90", quantile(_path(rows), 0.9), bound, "ms", "path_slow")


def check_path_over(rows: pa.Table, slo: Slo) -> Check:
    """Share of the answers for which the way alone took longer than the TTFT bound: nobody served them late.

    A process that stands still for seconds of a long window moves no p90, but adds these to those over it.
    """
    path = _path(rows)
    share = float(np.mean(path > slo.ttft_p90_ms)) if len(path) else None
    return _at_most("path_over", share, PATH_OVER, "", "path_slow")


def _path(rows: pa.Table) -> NDArray[np.float64]:
    """Real time in ms outside the engine of the answers that tell it."""
    path = metrics.path(rows)[metrics.status_in(rows, records.OK)]
    known: NDArray[np.float64] = path[~np.isnan(path)]
    return known


def check_replicas(rows: pa.Table, expected: Collection[str] | None) -> Check:
    """Answers of replicas that are not among the expected ones."""
    seen = rows.column("replica_id").cast(pa.string()).drop_null()
    if expected is None or not len(seen):
        return Check("unexpected_replicas", None, None, 0.0, "", "replica_lost")
    strange = set(pc.unique(seen).to_pylist()) - set(expected)
    return Check("unexpected_replicas", not strange, float(len(strange)), 0.0, "", "replica_lost")


def check_burst(rows: pa.Table) -> Check:
    """Share of the answers of 10 tokens or more that came in one or two reads."""
    reads, tokens = metrics.numbers(rows, "reads"), metrics.numbers(rows, "output_tokens")
    known = metrics.status_in(rows, records.OK) & (tokens >= metrics.BURST_TOKENS) & ~np.isnan(reads)
    share = float(np.mean(metrics.burst(rows)[known])) if known.any() else None
    return _at_most("burst_delivery", share, BURST_SHARE, "", "burst_delivery")


def check_prompts(rows: pa.Table) -> Check:
    """Mean prompt tokens by the server's usage against the plan; another workload is another capacity."""
    counted = metrics.numbers(rows, "prompt_tokens")
    planned = metrics.numbers(rows, "requested_input_tokens")
    known = ~np.isnan(counted) & (planned > 0)
    error = abs(float(counted[known].sum() / planned[known].sum()) - 1) if known.any() else None
    return _at_most("prompt_tokens_error", error, PROMPT_ERROR, "", "wrong_prompts")


def check_prefix_hits(rows: pa.Table, block_tokens: int = BLOCK_TOKENS) -> Check:
    """The share of the prompt tokens that the prefix cache served against the one that the plan shares.

    Whatever the shared tokens leave of a last block may be computed anew: up to `block_tokens` - 1. With
    sessions the hits depend on the routing, which is what is measured: then there is no bound, and no check.
    """
    if routing_spread.with_sessions(rows):
        return _at_most("prefix_hit_error", None, HIT_ERROR, "", "wrong_prefix_hits")
    hit = metrics.prefix_hit(rows)
    most, least = metrics.prefix_shared(rows), metrics.prefix_shared(rows, block_tokens - 1)
    error = None if hit is None else max(hit - most, least - hit, 0.0)
    return _at_most("prefix_hit_error", error, HIT_ERROR, "", "wrong_prefix_hits")


def check_words(rows: pa.Table) -> tuple[Check, ...]:
    """Answers whose replica or finish reason lost its own name; information, and no check without them."""
    folded = metrics.word_in(rows, "replica_id", foreign_words.OTHER) | metrics.word_in(
        rows, "finish_reason", foreign_words.OTHER
    )
    count = float(folded.sum())
    return (Check("folded_names", False, count, 0.0, "requests"),) if count else ()


def check_achieved(rows: pa.Table) -> Check:
    """Answered of offered, by the due time; those still in flight (the backlog) count on neither side."""
    offered = rows.num_rows - int(metrics.status_in(rows, records.PENDING).sum())
    achieved = int(metrics.status_in(rows, records.OK).sum())
    return _at_least("achieved", achieved / offered if offered else None, LEAST_ACHIEVED, "")


def check_little(requests: pa.Table, window: Window, in_flight_mean: float | None) -> Check:
    """|rate x time in system / L - 1| with L counted apart from the rows (the method, 5.1 L1).

    Rate x time in system is the time all requests spent in the window, per second of it; this is
    exact at the edges, where arrivals times their mean sojourn is not.
    """
    if in_flight_mean is None or in_flight_mean <= 0:
        return Check("little", None, None, LITTLE_ERROR, "")
    due, end = _sojourns(requests)
    inside = np.minimum(end, window.window_end_ns) - np.maximum(due, window.window_start_ns)
    mean = float(np.maximum(inside, 0).sum()) / (window.window_end_ns - window.window_start_ns)
    return _at_most("little", abs(mean / in_flight_mean - 1), LITTLE_ERROR, "")


def check_backlog(requests: pa.Table, window: Window) -> Check:
    """|t| of a slope over the window, sampled every second; above 3 it is unstable (the method, 5.2).

    The steeper one of the requests in the system and of those that wait for their first token. The
    standard error allows for the autocorrelation of the residuals. Information: a window with a growing
    queue is measured rightly and shows as over the limit.
    """
    due, end = _sojourns(requests)
    first = due + metrics.numbers(requests, "first_token_offset_ns")
    at = np.arange(window.window_start_ns, window.window_end_ns, NS, dtype=np.float64)
    slopes = [slope_t(_inside(due, left, at)) for left in (end, np.fmin(first, end))]
    worst = max((abs(t) for t in slopes if t is not None), default=None)
    return _at_most(BACKLOG, worst, UNSTABLE_T, "")


def check_concurrency(requests: pa.Table, window: Window) -> Check:
    """|X R / C - 1| of a closed loop (the method, 5.1 L1): else there were too few requests.

    X are the requests begun per second of the window, R is their mean time in the system.
    """
    due, end = _sojourns(in_window(requests, window))
    if not len(due) or np.isinf(end).any():
        return Check("concurrency_error", None, None, LITTLE_ERROR, "")
    in_flight = float(np.sum(end - due)) / NS / window.seconds
    return _at_most("concurrency_error", abs(in_flight / window.concurrency - 1), LITTLE_ERROR, "")


def check_rounds(requests: pa.Table, window: Window) -> Check:
    """Requests of the closed loop, ramp-up included, for each one in flight."""
    sent = int(np.sum(metrics.numbers(requests, "dwell") == window.index))
    return _at_least("requests_per_concurrency", sent / window.concurrency, LEAST_ROUNDS, "")


def check_steady(window: Window) -> Check:
    """Length of a closed loop's window."""
    return _at_least("steady_window", window.seconds, LEAST_STEADY_S, "s")


def slope_t(samples: NDArray[np.float64]) -> float | None:
    """t-statistic of the linear trend of evenly spaced samples; None below 10 samples or without spread.

    n is reduced to n (1 - a) / (1 + a), a >= 0 being the residuals' autocorrelation at lag 1.
    """
    n = len(samples)
    if n < 10:
        return None
    x = np.arange(n) - (n - 1) / 2
    slope = float(x @ samples) / float(x @ x)
    residual = samples - samples.mean() - slope * x
    squares = float(residual @ residual)
    if squares <= 1e-12 * n:
        return None if slope == 0 else math.copysign(math.inf, slope)
    a = max(float(residual[1:] @ residual[:-1]) / squares, 0.0)
    worth = max(n * (1 - a) / (1 + a), 2.5)
    return slope / math.sqrt(squares / (worth - 2) / float(x @ x))


def _sojourns(requests: pa.Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Due and end times in ns; end is +inf while a request is in flight."""
    due = metrics.numbers(requests, "due_ns")
    end = due + metrics.numbers(requests, "end_offset_ns")
    never = metrics.status_in(requests, records.PENDING)
    return due, np.where(never, np.inf, np.where(np.isnan(end), due, end))


def _inside(
    came: NDArray[np.float64], left: NDArray[np.float64], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How many had come and not left at each instant."""
    inside = np.searchsorted(np.sort(came), at, "right") - np.searchsorted(np.sort(left), at, "right")
    return inside.astype(np.float64)


def _time_scale(rows: pa.Table) -> float:
    """How many times as fast as the real clock the run's was; that of no rows is 1."""
    return float(np.max(metrics.time_scale(rows), initial=1.0))


def _worst(health: Mapping[str, Mapping[str, float]] | None, figure: str) -> float | None:
    return max(_figures(health, figure), default=None)


def _figures(health: Mapping[str, Mapping[str, float]] | None, figure: str) -> list[float]:
    """That figure of every actor that tells it."""
    return [actor[figure] for actor in (health or {}).values() if figure in actor]


def _at_most(name: str, value: float | None, bound: float, unit: str, reason: str = "") -> Check:
    return Check(name, None if value is None else value <= bound, value, bound, unit, reason)


def _at_least(name: str, value: float | None, bound: float, unit: str, reason: str = "") -> Check:
    return Check(name, None if value is None else value >= bound, value, bound, unit, reason, least=True)
