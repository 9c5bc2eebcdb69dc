"""Checks of a run as table rows, each with its meaning.

Figures and bounds come from `analysis.capacity.validity`.
"""

from collections.abc import Sequence

from analysis.capacity.check import Check
from analysis.report.blocks import Table
from analysis.report.wording import UNKNOWN, figure
from analysis.rows import foreign_words

MEANINGS = {
    "lost_actors": "load actors that died, and requests that were lost with them",
    "send_lag_p99": "how late the load generator sent: 99 % of the requests left within this",
    "sent": "share of the planned requests that were sent at all",
    "actor_cpu": "share of its core that the busiest load actor used: at 1 it could not have kept up",
    "run_share": "of the time a load actor wanted its core, the share it had it: below, neighbours count too",
    "loop_stall": "the longest time a load actor did nothing; what that spoilt shows in the send lag",
    "engine_late_steps": "share of the simulated engine's steps that came late: it missed its own clock",
    "path_p90": "time on the way outside an engine that tells its own: client, network, Ray Serve",
    "path_over": "share of the answers that this way alone made later than the bound on TTFT",
    "unexpected_replicas": "replicas that answered and were not deployed for this run",
    "malformed": "share of the answers that failed whatever the load: for their form, or refused as requests",
    "burst_delivery": "share of the answers whose tokens came merged, so that their pace cannot be known",
    "hidden_tokens": "share of the answers whose text does not account for the tokens that the server counts",
    "prompt_tokens_error": "how far the server's count of prompt tokens is from the plan",
    "prefix_hit_error": "how far the prefix cache's share of the prompts is from the intended one",
    "achieved": "share of the offered requests that were answered whole",
    "little": "Little's law: requests in flight as counted twice, apart from each other; the two must agree",
    "backlog_slope_t": "did a queue grow over the window? t statistic of the steeper rise",
    "concurrency_error": "closed loop: how far the mean number in flight was from the asked one",
    "requests_per_concurrency": "closed loop: requests for each one in flight; with few the start-up shows",
    "steady_window": "closed loop: how long it was measured after its start-up",
    "folded_names": f"answers whose replica or finish reason stands as {foreign_words.OTHER}: "
    f"it came after {foreign_words.MOST} different names",
    "queue_told": "share of the answers that tell their time in the server's queue, where a bound is on it",
    "valid_windows": "windows that were not void",
}
STATES = {"ok": "ok", "FAILED": "failed", "note": "note", UNKNOWN: "unknown"}
"""Outcomes of a check with the tone of its row. A note does not make a window void."""


def table(checks: Sequence[Check], valid: bool) -> Table:
    """The worst figure of each check, over the windows that count if there are any."""
    states = [state(check) for check in checks]
    rows = [_row(*pair) for pair in zip(checks, states, strict=True)]
    return Table(
        f"Every check with its worst figure over {'the windows that count' if valid else 'all windows'}",
        ("check", "state", "worst figure", "bound", "what it means"),
        tuple(rows),
        tones=tuple(STATES[one] for one in states),
        state=1,
        words=frozenset({4}),
        folded="FAILED" not in states,
        note="FAILED makes a window void. A note informs and decides nothing. Unknown: it does not apply, or "
        "was not reported.",
        stacks=True,
    )


def counted(checks: Sequence[Check]) -> str:
    """The number of checks in each state, as a sentence."""
    states = [state(check) for check in checks]
    known = [
        f"{count} {one}{'s' if one == 'note' and count > 1 else ''}"
        for one in STATES
        if (count := states.count(one))
    ]
    failed = "" if "FAILED" in states else "; none failed"
    if noted := [check.name for check, one in zip(checks, states, strict=True) if one == "note"]:
        failed += f" (notes: {', '.join(noted)})"
    return f"{len(states)} check{'' if len(states) == 1 else 's'}: {', '.join(known)}{failed}."


def state(check: Check) -> str:
    """The outcome of a check, one of `STATES`."""
    if check.passed is None:
        return UNKNOWN
    if check.passed:
        return "ok"
    return "FAILED" if check.reason else "note"


def _row(check: Check, outcome: str) -> tuple[str, ...]:
    unit = f" {check.unit}" if check.unit else ""
    sign = "at least " if check.least else "at most "
    worst = UNKNOWN if check.value is None else f"{figure(check.value)}{unit}"
    bound = UNKNOWN if check.bound is None else f"{sign}{figure(check.bound)}{unit}"
    return check.name, outcome, worst, bound, MEANINGS.get(check.name, UNKNOWN)
