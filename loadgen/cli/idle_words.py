"""Words without effect: of an engine, a policy or a search that was not chosen.

Looks only at typed words, because a saved file holds every key.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from conf import Experiment

SEARCHED = ("search.budget_s", "search.min_windows", "search.confirm_s")
VIRTUAL = ("search.min_windows", "search.confirm_s", "fleet.")
NOT_OF = {
    "probe": (SEARCHED, "a search; a probe lasts duration_s=..."),
    "progressive": (SEARCHED, "a search; progressive has levels of its own"),
    "predict": (VIRTUAL, "what is measured; predict sends nothing"),
    "replay": (("search.", *VIRTUAL), "a search or a fleet; a replay sends a number of requests"),
}
"""Verb -> prefixes of keys that it ignores, and what they belong to; `replay` is one kind of predict."""


@dataclass(frozen=True, slots=True)
class IdleKey:
    """Keys that begin with `key` have no effect unless `honoured`; the choice `home` gives them one."""

    key: str
    honoured: Callable[[Experiment], bool]
    home: str


MIXED = "lengths of another kind: that of a mixture follows from its values and weights"
IDLE_KEYS = (
    IdleKey("target.", lambda asked: asked.engine.kind == "external", "engine=external"),
    IdleKey("cluster.address", lambda asked: asked.cluster.session == "address", "cluster.session=address"),
    IdleKey(
        "routing.vnodes",
        lambda asked: asked.routing.policy in ("consistent_hash", "bounded_hash"),
        "routing=consistent_hash or bounded_hash",
    ),
    IdleKey(
        "routing.load_factor", lambda asked: asked.routing.policy == "bounded_hash", "routing=bounded_hash"
    ),
    IdleKey(
        "engine.drift_memory_s",
        lambda asked: getattr(asked.engine, "drift_sd", 0.0) > 0,
        "engine.drift_sd above 0",
    ),
    IdleKey(
        "engine.stall_mean_s",
        lambda asked: getattr(asked.engine, "stall_every_steps", 0) > 0,
        "engine.stall_every_steps above 0",
    ),
    IdleKey("workload.input_tokens.mean", lambda asked: asked.workload.input_tokens.kind != "mixture", MIXED),
    IdleKey(
        "workload.output_tokens.mean", lambda asked: asked.workload.output_tokens.kind != "mixture", MIXED
    ),
    IdleKey(
        "workload.images.",
        lambda asked: asked.workload.images.most > 0,
        "images, which workload.images.most=N adds",
    ),
    IdleKey(
        "workload.conversations.truncation_step_tokens",
        lambda asked: asked.workload.conversations is None or asked.workload.conversations.step_tokens > 1,
        "workload.conversations.truncation=cache_aware",
    ),
)


def idle(asked: Experiment, verb: str, words: Sequence[str]) -> str:
    """The reason why a word has no effect, with the remedy; empty if all have one."""
    keys = [word.partition("=")[0] for word in words]
    for rule in IDLE_KEYS:
        for key in keys:
            if key.startswith(rule.key) and not rule.honoured(asked):
                return f"{key} belongs to {rule.home}; leave it out"
    of_gate = next((key for key in keys if key.startswith("quality.")), "")
    if of_gate and verb != "quality":
        return f"{of_gate} belongs to quality; leave it out"
    if "engine.defect" in keys and verb != "quality":
        return "engine.defect belongs to quality: only compared answers show it"
    begins, home = NOT_OF.get("replay" if verb == "predict" and asked.is_replay else verb, ((), ""))
    key = next((key for key in keys if key.startswith(begins)), "") if begins else ""
    return f"{key} belongs to {home}; leave it out" if key else ""


def overspent(asked: Experiment, words: Sequence[str]) -> str:
    """The reason why the fewest windows do not fit a typed budget, with the remedy; empty if they fit."""
    search = asked.search
    budget_s = search.budget_s / search.deployments
    if search.least_s <= budget_s or not any(word.startswith("search.") for word in words):
        return ""
    fitting = int(budget_s * search.min_windows / search.least_s)
    fewer = f"lower search.min_windows to {fitting}" if fitting else "shorten search.window_s"
    return (
        f"search.min_windows={search.min_windows} need {search.least_s:g} s, above search.budget_s="
        f"{search.budget_s:g}; {fewer}, or raise search.budget_s to {search.least_s * search.deployments:g}"
    )
