"""The judgement of a window, or of a whole run: valid, or void for a reason with its remedy.

A void window neither passes nor fails and is never averaged in. Unknown is None, never True.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from analysis.capacity import client_checks, flow_checks, service_checks
from analysis.capacity.check import Check, at_least
from analysis.capacity.client_checks import Health
from analysis.capacity.service_checks import BLOCK_TOKENS
from analysis.capacity.window_counts import Window, in_window
from analysis.rows import failures, metrics
from conf.specs.experiment import Slo

LEAST_VALID_WINDOWS = 2

REMEDIES = {
    "client_limited": "Give the load generator more actors or CPUs, or fewer neighbours on its node.",
    "engine_late": "The simulated engine missed its own clock: give it more CPUs or fewer replicas.",
    "path_slow": "Time was lost before the engine: see what stood still or lacked CPU, replica or proxy.",
    "replica_lost": "A replica was replaced or unknown: look at its log, redeploy, and run again.",
    "actor_lost": "A load actor died: look at its node's memory and log, and resume the run.",
    "malformed_answers": "Mend the answers that fail whatever the load.",
    "burst_delivery": "Tokens came merged, TPOT is not believed: look for buffering in the proxy or server.",
    "hidden_tokens": "Counted tokens were not streamed: let the server stream its reasoning, or turn it off.",
    "wrong_prompts": "The server counts other prompt lengths than planned: use workload.prompt=token_ids.",
    "wrong_prefix_hits": "The prefix cache was not hit as intended: reset it, warm every replica, run again.",
    "queue_untold": "Start vLLM with --enable-per-request-metrics (0.29 has it), or leave slo.queue_... out.",
    "too_few_windows": "Raise search.budget_s.",
}
SLOWER = dict.fromkeys(("client_limited", "engine_late"), "A lower engine.time_scale helps too.")
"""Further advice where the run's clock was faster than the real one."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid, or void for `reason` (a key of `REMEDIES`; empty when valid), with all checks.

    `time_scale` is how many times as fast as the real clock the run's was, `failure` the most frequent kind
    of failed answers where these void it.
    """

    valid: bool
    reason: str
    checks: tuple[Check, ...]
    time_scale: float = 1.0
    failure: str = ""

    @property
    def remedy(self) -> str:
        """Advice to the user; empty when valid."""
        slower = SLOWER.get(self.reason, "") if self.time_scale > 1 else ""
        kind = self.failure
        most = f"Most: {failures.described(kind)}. {failures.remedy(kind)}" if kind else ""
        return " ".join(filter(None, (REMEDIES.get(self.reason, ""), most, slower)))


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Facts about a window beside its rows.

    `planned` requests were due in it (None: the rows there are). `health` maps an actor to its cpu_share and
    run_share (means over the window, 0 to 1) and stall_ms (the longest); unknown figures are left out.
    `in_flight_mean` is an average counted apart from the rows, by the server or by the sender. `block_tokens`
    is the block size of the engine's prefix cache. `unloaded` are the rows of the warm-up.
    """

    planned: int | None = None
    expected_replicas: Collection[str] | None = None
    health: Health | None = None
    lost_actors: Collection[str] = ()
    in_flight_mean: float | None = None
    block_tokens: int = BLOCK_TOKENS
    unloaded: pa.Table | None = None


ROWS_ALONE = WindowEvidence()


def judge_window(
    requests: pa.Table, window: Window, slo: Slo, evidence: WindowEvidence = ROWS_ALONE
) -> Verdict:
    """Valid or void, from the run's rows, of which the window's are taken.

    The window of a closed loop begins after the ramp-up and ends when the last request is sent. What only a
    closed loop can get wrong is information: its figures are for comparison and no capacity.
    """
    rows = in_window(requests, window)
    checks = (
        client_checks.lost_actors(rows, evidence.lost_actors),
        *service_checks.form(rows, evidence.unloaded),
        client_checks.send_lag(rows, slo),
        client_checks.sent(rows, evidence.planned),
        client_checks.cpu(evidence.health),
        client_checks.run_share(evidence.health),
        client_checks.stall(evidence.health, slo),
        service_checks.engine(rows),
        service_checks.path(rows, slo),
        service_checks.path_over(rows, slo),
        service_checks.replicas(rows, evidence.expected_replicas),
        service_checks.burst(rows),
        service_checks.hidden(rows),
        service_checks.prompts(rows),
        service_checks.prefix_hits(rows, evidence.block_tokens),
        service_checks.achieved(rows),
        *service_checks.queue_told(rows, slo),
        flow_checks.little(requests, window, evidence.in_flight_mean),
        *_loop_checks(requests, window, rows),
    )
    reason = next((check.reason for check in checks if check.voids), "")
    failure = failures.most_malformed(rows) if reason == "malformed_answers" else ""
    return Verdict(not reason, reason, checks, metrics.whole_time_scale(rows), failure)


def _loop_checks(requests: pa.Table, window: Window, rows: pa.Table) -> tuple[Check, ...]:
    """Checks of an open or a closed loop, and of folded words; a closed loop has no backlog."""
    words = service_checks.words(rows)
    if not window.concurrency:
        return (flow_checks.backlog(requests, window), *words)
    closed = (
        flow_checks.concurrency(requests, window),
        flow_checks.rounds(requests, window),
        flow_checks.steady(window),
    )
    return (*words, *closed)


def judge_run(windows: Sequence[Verdict], min_windows: int) -> Verdict:
    """Valid if at least max(2, `min_windows`) windows are; else void for the first void window's reason."""
    void = next((verdict for verdict in windows if not verdict.valid), Verdict(False, "too_few_windows", ()))
    reason = void.reason
    valid = float(sum(verdict.valid for verdict in windows))
    check = at_least("valid_windows", valid, float(max(LEAST_VALID_WINDOWS, min_windows)), "", reason)
    scale = max((verdict.time_scale for verdict in windows), default=1.0)
    if not check.voids:
        return Verdict(True, "", (check,), scale)
    return Verdict(False, reason, (check,), scale, void.failure)
