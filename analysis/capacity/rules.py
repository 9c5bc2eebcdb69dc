"""Why a window is void: every rule in one table, with its figure, bound, reason, remedy and meaning.

A window is void for the first rule that it breaks, in the order of `RULES`. A rule without a reason is a
note: it informs and decides nothing. `docs/exit_codes.md` and the report are written from these tables.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from analysis.capacity import client_checks, flow_checks, service_checks
from analysis.capacity.check import Check, at_least, at_most
from analysis.capacity.client_checks import Health
from analysis.capacity.service_checks import BLOCK_TOKENS
from analysis.capacity.window_counts import PATH_MS, Window, in_window
from analysis.rows import foreign_words, metrics
from conf.specs.experiment import Slo

LEAST_VALID_WINDOWS = 2


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a window or a run is void: what happened, and what to do about it.

    `on_fast_clock` is further advice where the run's clock was faster than the real one.
    """

    name: str
    cause: str
    remedy: str
    on_fast_clock: str = ""


_SLOWER = "A lower engine.time_scale helps too."
ACTOR_LOST = Reason(
    "actor_lost",
    "A load actor died.",
    "A load actor died: look at its node's memory and log, and resume the run.",
)
LOAD_HOST_LOST = Reason(
    "load_host_lost",
    "A host of load actors had no network: the driver, or its own requests, reached nothing there.",
    "Look at the network of the load host that the run names (cable, switch); the service is not the cause.",
)
NODE_LOST = Reason(
    "node_lost",
    "A serving node or the head could not be reached over the network.",
    "Look at the network of the node that the run names (cable, switch), and whether it runs.",
)
MALFORMED_ANSWERS = Reason(
    "malformed_answers",
    "Answers failed for their form, or as requests, and not for the load.",
    "Mend the answers that fail whatever the load.",
)
CLIENT_LIMITED = Reason(
    "client_limited",
    "The load generator could not keep its schedule.",
    "Give the load generator more actors or CPUs, or fewer neighbours on its node.",
    _SLOWER,
)
ENGINE_LATE = Reason(
    "engine_late",
    "The simulated engine could not keep its own clock on this machine.",
    "The simulated engine missed its own clock: give it more CPUs or fewer replicas.",
    _SLOWER,
)
PATH_SLOW = Reason(
    "path_slow",
    "Time was lost between the client and the engine, which reports its own times.",
    "Time was lost before the engine: see what stood still or lacked CPU, replica or proxy.",
)
REPLICA_LOST = Reason(
    "replica_lost",
    "A replica was replaced, or one answered that was not deployed for this run.",
    "A replica was replaced or unknown: look at its log, redeploy, and run again.",
)
BURST_DELIVERY = Reason(
    "burst_delivery",
    "Tokens came merged, so that their pace is not known.",
    "Tokens came merged, TPOT is not believed: look for buffering in the proxy or server.",
)
HIDDEN_TOKENS = Reason(
    "hidden_tokens",
    "The server counted tokens that it did not stream, so that the pace is not known.",
    "Counted tokens were not streamed: let the server stream its reasoning, or turn it off.",
)
WRONG_PROMPTS = Reason(
    "wrong_prompts",
    "The server counted other prompts than were planned.",
    "The server counts other prompt lengths than planned: use workload.prompt=token_ids.",
)
WRONG_PREFIX_HITS = Reason(
    "wrong_prefix_hits",
    "The prefix cache was not hit as intended.",
    "The prefix cache was not hit as intended: reset it, warm every replica, run again.",
)
QUEUE_UNTOLD = Reason(
    "queue_untold",
    "A bound is on the time in the server's queue, which its answers do not tell.",
    "Start vLLM with --enable-per-request-metrics (0.29 has it), or leave slo.queue_... out.",
)
TOO_FEW_WINDOWS = Reason("too_few_windows", "Too few windows were measured.", "Raise search.budget_s.")
REASONS = {
    reason.name: reason
    for reason in (
        *(
            LOAD_HOST_LOST,
            NODE_LOST,
            ACTOR_LOST,
            MALFORMED_ANSWERS,
            CLIENT_LIMITED,
            ENGINE_LATE,
            PATH_SLOW,
            REPLICA_LOST,
            BURST_DELIVERY,
        ),
        *(HIDDEN_TOKENS, WRONG_PROMPTS, WRONG_PREFIX_HITS, QUEUE_UNTOLD, TOO_FEW_WINDOWS),
    )
}


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Facts about a window beside its rows.

    `planned` requests were due in it (None: the rows there are). `health` maps an actor to its cpu_share and
    run_share (means over the window, 0 to 1) and stall_ms (the longest); unknown figures are left out.
    `in_flight_mean` is an average counted apart from the rows, by the server or by the sender. `block_tokens`
    is the block size of the engine's prefix cache. `unloaded` are the rows of the warm-up. `loss` says how
    the service was lost in it, empty if it was not. `lost_load_hosts` and `lost_nodes` could not be reached
    while the window or its answers lasted.
    """

    planned: int | None = None
    expected_replicas: Collection[str] | None = None
    health: Health | None = None
    lost_actors: Collection[str] = ()
    in_flight_mean: float | None = None
    block_tokens: int = BLOCK_TOKENS
    unloaded: pa.Table | None = None
    loss: str = ""
    lost_load_hosts: tuple[str, ...] = ()
    lost_nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Facts:
    """What a rule may look at: the run's requests, a window of them, the bounds, and further evidence."""

    requests: pa.Table
    window: Window
    slo: Slo
    evidence: WindowEvidence

    @cached_property
    def rows(self) -> pa.Table:
        """The requests of the window."""
        return in_window(self.requests, self.window)

    @property
    def is_closed_loop(self) -> bool:
        return bool(self.window.concurrency)


def _always(_: Facts) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Rule:
    """One figure of a window against its bound, a most one or else a `least`, in `unit`.

    The figure is None where it is unknown or does not apply. `meaning` says it to a reader of the report. A
    rule that does not `apply`, or whose figure is 0 where that is the rule, has no check.
    """

    name: str
    meaning: str
    figure: Callable[[Facts], float | None]
    bound: float | Callable[[Facts], float]
    reason: Reason | None = None
    unit: str = ""
    is_least: bool = False
    applies: Callable[[Facts], bool] = _always
    is_left_out_at_zero: bool = False

    def check(self, facts: Facts) -> Check | None:
        """The outcome of the rule for a window; None where the window has no such check."""
        if not self.applies(facts):
            return None
        value = self.figure(facts)
        if self.is_left_out_at_zero and value == 0:
            return None
        bound = self.bound(facts) if callable(self.bound) else self.bound
        judge = at_least if self.is_least else at_most
        return judge(self.name, value, bound, self.unit, self.reason.name if self.reason else "")


RULES = (
    Rule(
        "lost_load_hosts",
        "load hosts that could not be reached, or whose requests reached nothing while those of others did",
        lambda it: client_checks.lost_hosts(it.rows, it.evidence.lost_load_hosts),
        0.0,
        LOAD_HOST_LOST,
        is_left_out_at_zero=True,
    ),
    Rule(
        "lost_nodes",
        "serving nodes, the head among them, that could not be reached",
        lambda it: float(len(it.evidence.lost_nodes)),
        0.0,
        NODE_LOST,
        is_left_out_at_zero=True,
    ),
    Rule(
        "lost_actors",
        "load actors that died, and requests that were lost with them",
        lambda it: client_checks.lost_actors(it.rows, it.evidence.lost_actors),
        0.0,
        ACTOR_LOST,
    ),
    Rule(
        "malformed",
        "share of the answers that failed whatever the load: for their form, or refused as requests",
        lambda it: service_checks.malformed(it.rows, it.evidence.unloaded),
        service_checks.FORM_SHARE,
        MALFORMED_ANSWERS,
        is_left_out_at_zero=True,
    ),
    Rule(
        "send_lag_p99",
        "how late the load generator sent: 99 % of the requests left within this",
        lambda it: client_checks.send_lag(it.rows),
        lambda it: client_checks.lag_gate_ms(it.rows, it.slo),
        CLIENT_LIMITED,
        "ms",
    ),
    Rule(
        "sent",
        "share of the planned requests that were sent at all",
        lambda it: client_checks.sent(it.rows, it.evidence.planned),
        0.995,
        CLIENT_LIMITED,
        is_least=True,
    ),
    Rule(
        "actor_cpu",
        "share of its core that the busiest load actor used: at 1 it could not have kept up",
        lambda it: client_checks.cpu(it.evidence.health),
        client_checks.CPU_SHARE,
        CLIENT_LIMITED,
    ),
    Rule(
        "run_share",
        "share of the wanted CPU time that a load actor got; lower means other processes interfered",
        lambda it: client_checks.run_share(it.evidence.health),
        client_checks.RUN_SHARE,
        is_least=True,
    ),
    Rule(
        "loop_stall",
        "the longest time a load actor did nothing; what that spoilt shows in the send lag",
        lambda it: client_checks.stall(it.evidence.health),
        lambda it: client_checks.STALL_SHARE * it.slo.first_token_ms,
        unit="ms",
    ),
    Rule(
        "engine_late_steps",
        "share of the simulated engine's steps that came late: it missed its own clock",
        lambda it: service_checks.engine(it.rows),
        0.01,  # beyond it the p99 of the steps' lateness is too high
        ENGINE_LATE,
    ),
    Rule(
        "path_p90",
        "time on the way outside an engine that reports its own: client, network, Ray Serve",
        lambda it: service_checks.path(it.rows),
        # What is before the engine displaces the arrival, on a clock of speed D by D times as much.
        lambda it: max(
            service_checks.PATH_SHARE * it.slo.first_token_ms / metrics.whole_time_scale(it.rows), PATH_MS
        ),
        PATH_SLOW,
        "ms",
    ),
    Rule(
        "path_over",
        "share of the answers that this way alone made later than the bound on TTFT",
        lambda it: service_checks.path_over(it.rows, it.slo),
        0.01,
        PATH_SLOW,
    ),
    Rule(
        "unexpected_replicas",
        "replicas that answered and were not deployed for this run",
        lambda it: service_checks.replicas(it.rows, it.evidence.expected_replicas),
        0.0,
        REPLICA_LOST,
    ),
    Rule(
        "burst_delivery",
        "share of the answers whose tokens came merged, so that their pace cannot be known",
        lambda it: service_checks.burst(it.rows),
        0.01,
        BURST_DELIVERY,
    ),
    Rule(
        "hidden_tokens",
        "share of the answers whose text does not account for the tokens that the server counts",
        lambda it: service_checks.hidden(it.rows),
        0.01,  # our choice
        HIDDEN_TOKENS,
    ),
    Rule(
        "prompt_tokens_error",
        "how far the server's count of prompt tokens is from the plan",
        lambda it: service_checks.prompts(it.rows),
        0.01,  # our choice: another workload has another capacity
        WRONG_PROMPTS,
    ),
    Rule(
        "prefix_hit_error",
        "how far the prefix cache's share of the prompts is from the intended one",
        lambda it: service_checks.prefix_hits(it.rows, it.evidence.block_tokens),
        0.01,  # the method, 5.2
        WRONG_PREFIX_HITS,
    ),
    Rule(
        "achieved",
        "share of the offered requests that were answered whole",
        lambda it: service_checks.achieved(it.rows),
        0.98,
        is_least=True,
    ),
    Rule(
        "queue_told",
        "share of the answers that tell their time in the server's queue, where a bound is on it",
        lambda it: service_checks.queue_told(it.rows),
        service_checks.LEAST_QUEUE_TOLD,
        QUEUE_UNTOLD,
        is_least=True,
        applies=lambda it: it.slo.strictest_ms("queue") is not None,
    ),
    Rule(
        "little",
        "Little's law: requests in flight as counted twice, apart from each other; the two must agree",
        lambda it: flow_checks.little(it.requests, it.window, it.evidence.in_flight_mean),
        flow_checks.LITTLE_ERROR,
    ),
    Rule(
        # A window with a growing queue is measured rightly; the verdict says that it is too short.
        "backlog_slope_t",
        "did a queue grow over the window? t statistic of the steeper rise",
        lambda it: flow_checks.backlog(it.requests, it.window),
        flow_checks.UNSTABLE_T,
        applies=lambda it: not it.is_closed_loop,
    ),
    Rule(
        "folded_names",
        f"answers whose replica or finish reason stands as {foreign_words.OTHER}: "
        f"it came after {foreign_words.MOST} different names",
        lambda it: service_checks.folded_names(it.rows),
        0.0,
        unit="requests",
        is_left_out_at_zero=True,
    ),
    Rule(
        "concurrency_error",
        "closed loop: how far the mean number in flight was from the requested one",
        lambda it: flow_checks.concurrency(it.requests, it.window),
        flow_checks.LITTLE_ERROR,
        applies=lambda it: it.is_closed_loop,
    ),
    Rule(
        "requests_per_concurrency",
        "closed loop: requests for each one in flight; with few the start-up shows",
        lambda it: flow_checks.rounds(it.requests, it.window),
        10.0,  # the method, 5.1 L2
        is_least=True,
        applies=lambda it: it.is_closed_loop,
    ),
    Rule(
        "steady_window",
        "closed loop: how long it was measured after its start-up",
        lambda it: it.window.seconds,
        30.0,  # the method, 5.1 L2
        unit="s",
        is_least=True,
        applies=lambda it: it.is_closed_loop,
    ),
)
MEANINGS = {rule.name: rule.meaning for rule in RULES} | {
    "valid_windows": "windows that were not void",
    "service_losses": "a loss of the service that falls into the window",
}
"""What each check means, with those that no single window decides."""
