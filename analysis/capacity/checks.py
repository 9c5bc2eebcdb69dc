"""The figures of a window that are checked, `RULES` with their bounds and reasons, and the judgement by them.

A void window neither passes nor fails and is never averaged in. Unknown is None, never True.

The docstring of a figure is its meaning in the report; `docs/exit_codes.md` is written from `RULES`.
"""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.growing_queue import UNSTABLE_T, growth_t, sojourns
from analysis.capacity.rules import (
    LEAST_VALID_WINDOWS,
    ROWS_ALONE,
    Check,
    Facts,
    Health,
    Rule,
    Verdict,
    WindowEvidence,
)
from analysis.capacity.window_counts import NS, PATH_MS, Window, in_window
from analysis.rows import failures, metrics, parquet, records, routing_spread
from analysis.stats.estimate import NORMAL_95
from analysis.stats.quantiles import Floats, quantile
from conf.specs.experiment import Slo

LAG_MS, LAG_SHARE = 5.0, 0.01
"""A p99 send lag above max(5 ms, 1 % of the TTFT bound) voids (the method, 5.2), on the run's clock."""
LEAST_LAG_MS = 1.0
"""Send lag that is allowed on any clock, in real time: the event loop's timers count milliseconds."""
CPU_SHARE, RUN_SHARE = 0.60, 0.60
"""Most of its core that a load actor may use; and below this share of the wanted CPU time it measures its
neighbours too."""
STALL_SHARE = 0.05
"""A stall of the client's loop above this share of the TTFT bound is worth a line (our choice)."""
CUT_SHARE, CUT_LEAST = 0.9, 3
"""Share of an actor's requests in a row that failed without a way, and their least number (our choice)."""
NO_WAY = "No route to host", "Network is unreachable", "Network is down"
"""What Linux says of a network that is cut on its own side (EHOSTUNREACH, ENETUNREACH, ENETDOWN)."""
PATH_SHARE = 0.1
"""A p90 of the time outside the engine above this share of the TTFT bound voids (our choice)."""
FORM_SHARE = 0.01
"""Largest share of answers that failed for a reason other than load (our choice): they count as late, and a
hundredth of them lowers the capacity under a p90 by about a hundredth."""
LEAST_BROKEN = 3
"""Fewest broken answers of a warm-up that show a fault without load (our choice)."""
LEAST_QUEUE_TOLD = 0.99
"""Least share of the answers that tell their time in the queue, where a bound asks for it (our choice)."""
LITTLE_ERROR = 0.05
"""Largest relative error of Little's law (the method, 5.1 L1)."""


# Of the load generator.


def lost_load_hosts(facts: Facts) -> float:
    """load hosts that could not be reached, or whose requests reached nothing while those of others did"""
    return float(len(facts.evidence.lost_load_hosts) or len(cut_off(facts.rows)))


def cut_off(rows: pa.Table) -> list[int]:
    """Load actors whose requests found no way to a service that answered others meanwhile.

    One that finds none while no other is answered may stand before a server without a network.
    """
    client, due_ns = metrics.numbers(rows, "client_id"), metrics.numbers(rows, "due_ns")
    no_way = metrics.status_in(rows, "conn_error")
    if no_way.any():
        words = rows["error"].to_pylist()
        no_way &= np.array(
            [any(phrase in (word or "") for phrase in NO_WAY) for word in words], dtype=np.bool_
        )
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


def lost_actors(facts: Facts) -> float:
    """load actors that died, and requests that were lost with them"""
    orphans = metrics.status_in(facts.rows, "lost") | metrics.word_in(facts.rows, "error_kind", "interrupted")
    return float(len(facts.evidence.lost_actors) + int(orphans.sum()))


def send_lag_p99(facts: Facts) -> float | None:
    """how late the load generator sent: 99 % of the requests left within this"""
    return quantile(metrics.send_lag(facts.rows), 0.99)


def lag_gate_ms(rows: pa.Table, slo: Slo) -> float:
    """The largest p99 of the send lag with which a window is valid, in ms of real time.

    On a clock of speed D a lag displaces an arrival by D times as much: the bound is the D-th part.
    """
    return max(max(LAG_MS, LAG_SHARE * slo.first_token_ms) / metrics.whole_time_scale(rows), LEAST_LAG_MS)


def sent(facts: Facts) -> float | None:
    """share of the planned requests that were sent at all"""
    # A refused connection was tried; a row not yet sent is unknown.
    lag = metrics.send_lag(facts.rows)
    unsent = np.isinf(lag)
    undecided = np.isnan(lag) & metrics.status_in(facts.rows, records.PENDING)
    planned = facts.rows.num_rows if facts.evidence.planned is None else facts.evidence.planned
    total = planned - int(undecided.sum())
    made = facts.rows.num_rows - int((unsent | undecided).sum())
    return made / total if total > 0 else None


def actor_cpu(facts: Facts) -> float | None:
    """share of its core that the busiest load actor used: at 1 it could not have kept up"""
    return max(_of_actors(facts.evidence.health, "cpu_share"), default=None)


def run_share(facts: Facts) -> float | None:
    """share of the wanted CPU time that a load actor got; lower means other processes interfered"""
    return min(_of_actors(facts.evidence.health, "run_share"), default=None)


def loop_stall(facts: Facts) -> float | None:
    """the longest time a load actor did nothing; what that spoilt shows in the send lag"""
    return max(_of_actors(facts.evidence.health, "stall_ms"), default=None)


def _of_actors(health: Health | None, figure: str) -> list[float]:
    return [actor[figure] for actor in (health or {}).values() if figure in actor]


# Of the service.


def lost_nodes(facts: Facts) -> float:
    """serving nodes, the head among them, that could not be reached"""
    return float(len(facts.evidence.lost_nodes))


def malformed(facts: Facts) -> float:
    """share of the answers that failed whatever the load: for their form, or refused as requests"""
    # Answers that broke off or hold an error count too where load is not the cause: the warm-up had more than
    # `FORM_SHARE` of them, and the window has no clearly larger share.
    total, unloaded = failures.answered(facts.rows), facts.evidence.unloaded
    count, broken = int(failures.malformed(facts.rows).sum()), int(failures.broken(facts.rows).sum())
    if broken and unloaded is not None and not _grown(unloaded, broken / total, total):
        count += broken
    return count / total if count else 0.0


def _grown(unloaded: pa.Table, share: float, total: int) -> bool:
    """True if a share of broken answers is larger than without load: one chance in 20 if they are equal."""
    before, broken = failures.answered(unloaded), int(failures.broken(unloaded).sum())
    own = broken / max(before, 1)
    if broken < LEAST_BROKEN or own <= FORM_SHARE:
        return True
    mean = (own * before + share * total) / (before + total)
    return share - own > NORMAL_95 * math.sqrt(mean * (1 - mean) * (1 / before + 1 / total))


def engine_late_steps(facts: Facts) -> float | None:
    """share of the simulated engine's steps that came late: it missed its own clock"""
    # Late by more than half of itself; each step counts once for every request that it gave a token.
    steps = np.nansum(metrics.numbers(facts.rows, "engine_steps"))
    late = np.nansum(metrics.numbers(facts.rows, "engine_late_steps"))
    return float(late / steps) if steps > 0 else None


def path_p90(facts: Facts) -> float | None:
    """time on the way outside an engine that reports its own: client, network, Ray Serve"""
    return quantile(_path(facts.rows), 0.9)


def _path_gate_ms(facts: Facts) -> float:
    """What is before the engine displaces the arrival, on a clock of speed D by D times as much."""
    return max(PATH_SHARE * facts.slo.first_token_ms / metrics.whole_time_scale(facts.rows), PATH_MS)


def path_over(facts: Facts) -> float | None:
    """share of the answers that this way alone made later than the bound on TTFT"""
    # A process that stands still for seconds of a long window moves no p90, but adds such answers.
    path = _path(facts.rows)
    return float(np.mean(path > facts.slo.first_token_ms)) if len(path) else None


def _path(rows: pa.Table) -> Floats:
    """Real time in ms outside the engine, of the answers that report it."""
    path = metrics.path(rows)[metrics.status_in(rows, records.OK)]
    known: Floats = path[~np.isnan(path)]
    return known


def unexpected_replicas(facts: Facts) -> float | None:
    """replicas that answered and were not deployed for this run"""
    answering = set(pc.unique(facts.rows.column("replica_id").cast(pa.string()).drop_null()).to_pylist())
    expected = facts.evidence.expected_replicas
    return None if expected is None or not answering else float(len(answering.difference(expected)))


def burst_delivery(facts: Facts) -> float | None:
    """share of the answers whose tokens came merged, so that their pace cannot be known"""
    reads, tokens = metrics.numbers(facts.rows, "reads"), metrics.numbers(facts.rows, "output_tokens")
    known = metrics.status_in(facts.rows, records.OK) & (tokens >= metrics.BURST_TOKENS) & ~np.isnan(reads)
    return float(np.mean(metrics.burst(facts.rows)[known])) if known.any() else None


def hidden_tokens(facts: Facts) -> float | None:
    """share of the answers whose text does not account for the tokens that the server counts"""
    whole = metrics.status_in(facts.rows, records.OK)
    return float(np.mean(metrics.hidden(facts.rows)[whole])) if whole.any() else None


def prompt_tokens_error(facts: Facts) -> float | None:
    """how far the server's count of prompt tokens is from the plan"""
    counted = metrics.numbers(facts.rows, "prompt_tokens")
    planned = metrics.numbers(facts.rows, "requested_input_tokens")
    known = ~np.isnan(counted) & (planned > 0)
    return abs(float(counted[known].sum() / planned[known].sum()) - 1) if known.any() else None


def prefix_hit_error(facts: Facts) -> float | None:
    """how far the prefix cache's share of the prompts is from the intended one"""
    # Shared tokens in an incomplete last block may be computed anew. With sessions the hits depend on the
    # routing, which is measured: then the figure is unknown. Those of a trace may be fewer, as caches forget
    # and replicas are several, but not more.
    rows = facts.rows
    if routing_spread.with_sessions(rows):
        return None
    if metrics.reused(rows):
        rows = rows.filter(metrics.numbers(rows, "prompt_tokens") > 0)  # others have hits that nobody told
    hit = metrics.prefix_hit(rows)
    most, least = metrics.prefix_shared(rows), metrics.prefix_shared(rows, facts.evidence.block_tokens - 1)
    fewer = 0.0 if metrics.reused(rows) else least - (hit or 0.0)
    return None if hit is None else max(hit - most, fewer, 0.0)


def achieved(facts: Facts) -> float | None:
    """share of the offered requests that were answered whole"""
    # By the due time; those still in flight (the backlog) count on neither side.
    offered = facts.rows.num_rows - int(metrics.status_in(facts.rows, records.PENDING).sum())
    return int(metrics.status_in(facts.rows, records.OK).sum()) / offered if offered else None


def queue_told(facts: Facts) -> float | None:
    """share of the answers that tell their time in the server's queue, where a bound is on it"""
    return queue_share(facts.rows)


def queue_share(rows: pa.Table) -> float | None:
    """Share of the answers that tell their time in the server's queue."""
    reported = ~np.isnan(metrics.queue(rows)[metrics.status_in(rows, records.OK)])
    return float(np.mean(reported)) if len(reported) else None


def folded_names(facts: Facts) -> float:
    """answers whose replica or finish reason stands as (other): it came after 4096 different names"""
    columns = "replica_id", "finish_reason"
    replica, finish = (metrics.word_in(facts.rows, column, parquet.OTHER_WORD) for column in columns)
    return float((replica | finish).sum())


# Of how requests come and leave.


def little(facts: Facts) -> float | None:
    """Little's law: requests in flight as counted twice, apart from each other; the two must agree"""
    # |rate x time in system / L - 1| with L counted apart from the rows (the method, 5.1 L1). Rate x time in
    # system is the time all requests spent in the window, per second of it; this is exact at the edges, where
    # arrivals times their mean sojourn is not.
    counted, window = facts.evidence.in_flight_mean, facts.window
    if counted is None or counted <= 0:
        return None
    due, end = sojourns(facts.requests)
    inside = np.minimum(end, window.window_end_ns) - np.maximum(due, window.window_start_ns)
    mean = float(np.maximum(inside, 0).sum()) / (window.window_end_ns - window.window_start_ns)
    return abs(mean / counted - 1)


def backlog_slope_t(facts: Facts) -> float | None:
    """did a queue grow over the window? t statistic of the steeper rise"""
    t = growth_t(facts.requests, facts.window)
    return None if t is None else max(t, 0.0)


def concurrency_error(facts: Facts) -> float | None:
    """closed loop: how far the mean number in flight was from the requested one"""
    # |X R / C - 1| (the method, 5.1 L1), large with too few requests. X are the requests begun per second of
    # the window, R is their mean time in the system.
    due, end = sojourns(in_window(facts.requests, facts.window))
    if not len(due) or np.isinf(end).any():
        return None
    in_flight = float(np.sum(end - due)) / NS / facts.window.seconds
    return abs(in_flight / facts.window.concurrency - 1)


def requests_per_concurrency(facts: Facts) -> float:
    """closed loop: requests for each one in flight; with few the start-up shows"""
    begun = int(np.sum(metrics.numbers(facts.requests, "window_index") == facts.window.index))
    return begun / facts.window.concurrency


def steady_window(facts: Facts) -> float:
    """closed loop: how long it was measured after its start-up"""
    return facts.window.seconds


def _is_closed(facts: Facts) -> bool:
    return facts.is_closed_loop


RULES = (
    Rule(lost_load_hosts, 0.0, "load_host_lost", is_left_out_at_zero=True),
    Rule(lost_nodes, 0.0, "node_lost", is_left_out_at_zero=True),
    Rule(lost_actors, 0.0, "actor_lost"),
    Rule(malformed, FORM_SHARE, "malformed_answers", is_left_out_at_zero=True),
    Rule(send_lag_p99, lambda facts: lag_gate_ms(facts.rows, facts.slo), "client_limited", "ms"),
    Rule(sent, 0.995, "client_limited", is_least=True),
    Rule(actor_cpu, CPU_SHARE, "client_limited"),
    Rule(run_share, RUN_SHARE, is_least=True),
    Rule(loop_stall, lambda facts: STALL_SHARE * facts.slo.first_token_ms, unit="ms"),
    Rule(engine_late_steps, 0.01, "engine_late"),  # beyond it the p99 of the steps' lateness is too high
    Rule(path_p90, _path_gate_ms, "path_slow", "ms"),
    Rule(path_over, 0.01, "path_slow"),
    Rule(unexpected_replicas, 0.0, "replica_lost"),
    Rule(burst_delivery, 0.01, "burst_delivery"),
    Rule(hidden_tokens, 0.01, "hidden_tokens"),  # our choice
    Rule(prompt_tokens_error, 0.01, "wrong_prompts"),  # our choice: another workload has another capacity
    Rule(prefix_hit_error, 0.01, "wrong_prefix_hits"),  # the method, 5.2
    Rule(achieved, 0.98, is_least=True),
    Rule(
        queue_told,
        LEAST_QUEUE_TOLD,
        "queue_untold",
        is_least=True,
        applies=lambda facts: facts.slo.strictest_ms("queue") is not None,
    ),
    Rule(little, LITTLE_ERROR),
    # A window with a growing queue is measured rightly; the verdict says that it is too short.
    Rule(backlog_slope_t, UNSTABLE_T, applies=lambda facts: not facts.is_closed_loop),
    Rule(folded_names, 0.0, unit="requests", is_left_out_at_zero=True),
    Rule(concurrency_error, LITTLE_ERROR, applies=_is_closed),
    Rule(requests_per_concurrency, 10.0, is_least=True, applies=_is_closed),  # the method, 5.1 L2
    Rule(steady_window, 30.0, unit="s", is_least=True, applies=_is_closed),  # the method, 5.1 L2
)
"""A window is void for the first rule with a reason that it breaks."""
MEANINGS = {rule.name: rule.meaning for rule in RULES} | {
    "valid_windows": "windows that were not void",
    "service_losses": "a loss of the service that falls into the window",
}
"""What each check means, with those that no single window decides."""


def judge_window(
    requests: pa.Table, window: Window, slo: Slo, evidence: WindowEvidence = ROWS_ALONE
) -> Verdict:
    """Valid or void, from the run's rows, of which the window's are taken.

    The window of a closed loop begins after the ramp-up and ends when the last request is sent. What only a
    closed loop can get wrong is information: its figures are for comparison and no capacity.
    """
    facts = Facts(requests, window, slo, evidence)
    checks = tuple(check for rule in RULES if (check := rule.check(facts)) is not None)
    reason = next((check.reason for check in checks if check.voids), "")
    failure = failures.most_malformed(facts.rows) if reason == "malformed_answers" else ""
    return Verdict(not reason, reason, checks, metrics.whole_time_scale(facts.rows), failure)


def judge_run(windows: Sequence[Verdict], min_windows: int) -> Verdict:
    """Valid if at least max(2, `min_windows`) windows are; else void for the first void window's reason."""
    void = next((window for window in windows if not window.valid), Verdict(False, "too_few_windows", ()))
    valid = float(sum(window.valid for window in windows))
    least = float(max(LEAST_VALID_WINDOWS, min_windows))
    check = Check("valid_windows", valid >= least, valid, least, "", void.reason, least=True)
    scale = max((window.time_scale for window in windows), default=1.0)
    if check.passed:
        return Verdict(True, "", (check,), scale)
    return Verdict(False, void.reason, (check,), scale, void.failure)
