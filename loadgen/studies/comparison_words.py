"""Arguments of a comparison: the two sides, from words or from two saved configurations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from conf import ConfigError, Experiment
from conf.keys import differences

SHARED = ("workload", "slo", "search", "fleet")
"""Groups that both sides must share, since B would otherwise answer another question."""
NODES, CLOCK = "cluster.nodes or routing=per_node", "engine.time_scale"
CHATS = "workload.conversations"
"""Users who live on one clock: their turns cannot be scaled in time."""
OF_BOTH = ("seed", "run", "out")
"""Keys that a study has only once."""
USAGE = (
    "{verb} takes two config.yaml of runs, or words for one side: "
    "python -m loadgen {verb} a.layout=dp1_tp8_ep8 b.layout=dp2_tp4_ep4"
)


Asked = Callable[[Sequence[str], Path | None], Experiment]
"""Makes the experiment of words over a saved configuration."""


def compared(words: Sequence[str], config: Path | None, asked: Asked) -> tuple[Experiment, Experiment]:
    """A and B of the words, with one seed.

    Raises ConfigError unless there are two files or a difference, and if B cannot get A's requests.
    """
    a, b = sides("compare", words, config, asked)
    _refuse_unlike(a, b)
    return a, b


def sides(
    verb: str, words: Sequence[str], config: Path | None, asked: Asked
) -> tuple[Experiment, Experiment]:
    """A and B of a verb's words, with one seed.

    Raises ConfigError unless there are two files or a difference.
    """
    usage = USAGE.format(verb=verb)
    files = [Path(word) for word in words if "=" not in word]
    given = [word for word in words if "=" in word]
    if len(files) not in (0, 2) or (files and config):
        raise ConfigError(usage)
    _refuse_one_sided(given)
    bases: Sequence[Path | None] = files or [config, config]
    a, b = (asked(_of(side, given), base) for side, base in zip("ab", bases, strict=True))
    # The name in a file is that of the run it comes from.
    name = a.run if any(word.startswith("run=") for word in given) else None
    a, b = replace(a, run=name), replace(b, run=name, seed=a.seed, out=a.out)
    if not differences(a, b):
        raise ConfigError(f"A and B are the same; {usage}")
    return a, b


def lines(a: Experiment, b: Experiment) -> list[str]:
    """The compared configurations, above A's."""
    differing = (f"{key} {ours} -> {theirs}" for key, (ours, theirs) in differences(a, b).items())
    replicas = f"{a.replicas} replica(s) for A, then {b.replicas} for B"
    return [
        f"A is below; B differs in {', '.join(differing)}",
        f"two services, one after the other: {replicas}",
    ]


def _refuse_one_sided(words: Sequence[str]) -> None:
    for word in words:
        side, _, rest = word.partition(".")
        key = rest.partition("=")[0]
        if side in ("a", "b") and key in OF_BOTH:
            raise ConfigError(f"{side}.{key}: {key} belongs to both: {rest}")


def unlike(a: Experiment, b: Experiment) -> str:
    """The difference that keeps B from getting A's requests; empty if there is none."""
    groups = [group for group in SHARED if getattr(a, group) != getattr(b, group)]
    if groups:
        return groups[0]
    if a.workload.conversations is not None:
        return CHATS
    if a.cluster.nodes != b.cluster.nodes or a.streams != b.streams:
        return NODES
    return CLOCK if a.time_scale != b.time_scale else ""


def _refuse_unlike(a: Experiment, b: Experiment) -> None:
    apart = unlike(a, b)
    if apart in SHARED:
        why = f"compare sends B the requests of A, but {apart} differs"
        raise ConfigError(f"{why}; give {apart}=... for both")
    if apart == CHATS:
        raise ConfigError(
            "compare scales A's requests in time, which users of conversations do not follow; measure both "
            "by sweep matrix.KEY=[A,B]"
        )
    if apart == NODES:
        raise ConfigError(
            "compare needs as many nodes on both sides, pooled on both or routing=per_node on both: "
            f"cluster.nodes are {a.cluster.nodes} and {b.cluster.nodes}, streams {a.streams} and {b.streams}"
        )
    if apart == CLOCK:
        raise ConfigError(
            "compare needs one clock, but engine.time_scale differs: "
            f"{a.time_scale:g} and {b.time_scale:g}; give engine.time_scale=... for both"
        )
    if a.search.parts > 1:
        raise ConfigError("compare is one pair of sweeps; add search.deployments=1 search.repeats=1")


def _of(side: str, words: Sequence[str]) -> list[str]:
    """The words of one side, its own last, so that they win."""
    both = [word for word in words if not word.startswith(("a.", "b."))]
    own = [word.removeprefix(f"{side}.") for word in words if word.startswith(f"{side}.")]
    keys = {word.partition("=")[0] for word in own}
    return [word for word in both if word.partition("=")[0] not in keys] + own
