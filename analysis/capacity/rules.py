"""A rule on a window and the verdict: checks, the reasons for which a window is void, the facts looked at."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from analysis.capacity.window_counts import Window, in_window
from analysis.rows import failures
from conf.specs.experiment import Slo

LEAST_VALID_WINDOWS = 2
BLOCK_TOKENS = 16
"""vLLM's default block: a prefix cache serves whole ones, the rest of what is shared is computed anew."""

Health = Mapping[str, Mapping[str, float]]
"""Figures of each load actor by its name."""


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
class Reason:
    """Why a window or a run is void: what happened, and what to do about it.

    `on_fast_clock` is further advice where the run's clock was faster than the real one.
    """

    cause: str
    remedy: str
    on_fast_clock: str = ""


_SLOWER = "A lower engine.time_scale helps too."
REASONS: Mapping[str, Reason] = {
    "load_host_lost": Reason(
        "A host of load actors had no network or no Ray: the driver, or its requests, reached nothing.",
        "Look at the network of the load host that the run names (cable, switch, Ray); "
        "the service is not the cause.",
    ),
    "node_lost": Reason(
        "A serving node or the head could not be reached over the network.",
        "Look at the network of the node that the run names (cable, switch), and whether it runs.",
    ),
    "actor_lost": Reason(
        "A load actor died.",
        "A load actor died: look at its node's memory and log, and resume the run.",
    ),
    "malformed_answers": Reason(
        "Answers failed for their form, or as requests, and not for the load.",
        "Mend the answers that fail whatever the load.",
    ),
    "client_limited": Reason(
        "The load generator could not keep its schedule.",
        "Give the load generator more actors or CPUs, or fewer neighbours on its node.",
        _SLOWER,
    ),
    "engine_late": Reason(
        "The simulated engine could not keep its own clock on this machine.",
        "The simulated engine missed its own clock: give it more CPUs or fewer replicas.",
        _SLOWER,
    ),
    "path_slow": Reason(
        "Time was lost between the client and the engine, which reports its own times.",
        "Time was lost before the engine: look for a replica or proxy that lacked CPU, and at the network.",
    ),
    "replica_lost": Reason(
        "A replica was replaced, or one answered that was not deployed for this run.",
        "A replica was replaced or unknown: look at its log, redeploy, and run again.",
    ),
    "burst_delivery": Reason(
        "Tokens came merged, so that their pace is not known.",
        "Tokens came merged, TPOT is not believed: look for buffering in the server or proxy, lost packets.",
    ),
    "hidden_tokens": Reason(
        "The server counted tokens that it did not stream, so that the pace is not known.",
        "Counted tokens were not streamed: let the server stream its reasoning, or turn it off.",
    ),
    "wrong_prompts": Reason(
        "The server counted other prompts than were planned.",
        "The server counts other prompt lengths than planned: use workload.prompt=token_ids.",
    ),
    "wrong_prefix_hits": Reason(
        "The prefix cache was not hit as intended.",
        "The prefix cache was not hit as intended: reset it, warm every replica, run again.",
    ),
    "queue_untold": Reason(
        "A bound is on the time in the server's queue, which its answers do not tell.",
        "Start vLLM with --enable-per-request-metrics (0.29 has it), or leave slo.queue_... out.",
    ),
    "too_few_windows": Reason("Too few windows were measured.", "Raise search.budget_s."),
}
"""Why a window or a run is void, by name. A window is void for the first reason that it gives."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Valid, or void for `reason` (a key of `REASONS`; empty when valid), with all checks.

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
        if self.reason not in REASONS:
            return ""
        reason, kind = REASONS[self.reason], self.failure
        most = f"Most: {failures.described(kind)}. {failures.remedy(kind)}" if kind else ""
        slower = reason.on_fast_clock if self.time_scale > 1 else ""
        return " ".join(filter(None, (reason.remedy, most, slower)))


VALID = Verdict(True, "", ())
"""The verdict on a window before any check."""


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


ROWS_ALONE = WindowEvidence()


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


@dataclass(frozen=True, slots=True)
class Rule:
    """A figure of a window against its bound, a most one or else a `least`, in `unit`.

    The figure's function names the rule, and its docstring is the meaning that a report gives. The figure is
    None where it is unknown or does not apply. A rule without a `reason`, a key of `REASONS`, is a note: it
    decides nothing. A rule that does not `apply`, or whose figure is 0 where that is
    left out, has no check.
    """

    figure: Callable[[Facts], float | None]
    bound: float | Callable[[Facts], float]
    reason: str = ""
    unit: str = ""
    is_least: bool = False
    applies: Callable[[Facts], bool] = lambda _: True
    is_left_out_at_zero: bool = False

    @property
    def name(self) -> str:
        return self.figure.__name__

    @property
    def meaning(self) -> str:
        """What the figure is, for a reader of the report."""
        return self.figure.__doc__ or ""

    def check(self, facts: Facts) -> Check | None:
        """The outcome of the rule for a window; None where the window has no such check."""
        if not self.applies(facts):
            return None
        value = self.figure(facts)
        if self.is_left_out_at_zero and value == 0:
            return None
        bound = self.bound(facts) if callable(self.bound) else self.bound
        passed = None if value is None else value >= bound if self.is_least else value <= bound
        return Check(self.name, passed, value, bound, self.unit, self.reason, self.is_least)


RANK = {False: 2, None: 0, True: 1}
"""The outcome of a check, from unknown to the worst."""


def worst_checks(verdicts: Sequence[Verdict]) -> tuple[Check, ...]:
    """The worst figure of each check over the windows."""
    return tuple(worst_by_name(check for verdict in verdicts for check in verdict.checks).values())


def worst_by_name(checks: Iterable[Check]) -> dict[str, Check]:
    """The worst figure of each check; failed ones are worse than all others."""
    worst: dict[str, Check] = {}
    for check in checks:
        known = worst.setdefault(check.name, check)
        if (RANK[check.passed], _distance(check)) > (RANK[known.passed], _distance(known)):
            worst[check.name] = check
    return worst


def _distance(check: Check) -> float:
    """Distance of a figure towards its bound; the larger of two is the worse."""
    if check.value is None or check.bound is None:
        return -math.inf
    return float(check.bound - check.value) if check.least else abs(float(check.value))
