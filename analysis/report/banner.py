"""The banner of a page: the claim with its interval, or the reason why nothing is claimed and a remedy.

Knows the verdicts of runs and studies; shows a figure only where the verdict claims it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.capacity import node_effects, paired_ratio
from analysis.capacity.posterior import LIMITS
from analysis.capacity.validity import REMEDIES
from analysis.report.blocks import Banner
from analysis.report.wording import bound, figure, qps
from analysis.results import engine_agreement, integrity, matrix_table, studies, summary
from analysis.results.runs import Run
from analysis.rows import routing_spread

Tree = Mapping[str, Any]
Figures = tuple[tuple[str, str], ...]
Claim = tuple[str, Figures, tuple[str, ...]]
"""A headline, its few figures, and the sentences below."""

CAUSES = {
    "client_limited": "The load generator could not keep its schedule.",
    "engine_late": "The simulated engine could not keep its own clock on this machine.",
    "path_slow": "Time was lost between the client and the engine, which reports its own times.",
    "replica_lost": "A replica was replaced, or one answered that was not deployed for this run.",
    "actor_lost": "A load actor died.",
    "burst_delivery": "Tokens came merged, so that their pace is not known.",
    "wrong_prompts": "The server counted other prompts than were planned.",
    "wrong_prefix_hits": "The prefix cache was not hit as intended.",
    "too_few_dwells": "Too few windows were measured.",
}
"""Meaning of each void reason of `analysis.capacity.validity`."""
LONGER = "Search longer: search=standard takes 15 minutes, or raise search.budget_s."
PROMISE = "with 95 % probability a node keeps both bounds at this rate"


def of_run(run: Run) -> Banner:
    """The banner of a run, killed or ended."""
    if found := integrity.altered(run.path):
        return altered(found)
    return unfinished(run) if run.sweep is None else of_tree(run.sweep)


def of_study(path: Path, tree: Tree) -> Banner:
    """The banner of a study."""
    found = integrity.altered(path)
    return altered(found) if found else of_tree(tree)


def altered(found: Sequence[str]) -> Banner:
    """The banner of a folder whose files changed since they were written."""
    return Banner(
        "ALTERED",
        "bad",
        "No capacity is claimed: its files are not as they were written",
        sentences=tuple(found[: integrity.MOST_NAMED]),
    )


def of_tree(tree: Tree) -> Banner:
    """The banner of the verdict of a run or study."""
    valid = bool(tree["valid"])
    headline, figures, sentences = _claim(tree) if valid else (_nothing(tree), (), ())
    good = valid and tree["exit_code"] == summary.EXIT_OK
    cause, remedy = _why(tree)
    return Banner(
        word=summary.word(tree),
        tone="good" if good else "short" if valid else "bad",
        headline=headline,
        figures=figures,
        sentences=tuple(
            line for line in (cause, *sentences) if line and line.lower() not in headline.lower()
        ),
        remedy=remedy,
        label=_sentence(summary.engine_label(tree)),
    )


def unfinished(run: Run) -> Banner:
    """The banner of a killed run: its requests on record, and the way to go on."""
    rows = run.requests(columns=["status", "phase"])
    words = zip(rows["status"].to_pylist(), rows["phase"].to_pylist(), strict=True)
    states = Counter("retracted" if phase == "retracted" else status for status, phase in words)
    counted = ", ".join(f"{count:,} {status}" for status, count in sorted(states.items())) or "none"
    swept = run.manifest.get("verb") == "sweep"
    remedy = f"To go on: python -m loadgen resume {studies.whole(run.path)}" if swept else "Run it again."
    sentences = "It ended before it could conclude: it has no sweep.json.", f"Requests on record: {counted}."
    return Banner("UNFINISHED", "bad", "No capacity is claimed", sentences=sentences, remedy=remedy)


def _nothing(tree: Tree) -> str:
    return "Nothing is concluded" if tree.get("probe") or tree.get("verify") else "No capacity is claimed"


def _why(tree: Tree) -> tuple[str, str]:
    """The reason why nothing, or only a bound, is claimed, and the remedy."""
    reason = tree.get("reason") or ""
    code, _, rest = reason.partition(": ")
    if code in CAUSES:
        return f"{CAUSES[code]} ({code})", rest or REMEDIES[code]
    resumes = summary.resumable(tree) and (tree.get("study") or tree.get("verb") == "sweep")
    capacity = tree.get("capacity") or {}
    if tree["valid"] and (capacity.get("open_above") or capacity.get("open_below")):
        return _sentence(reason), LONGER
    go_on = f"To go on: python -m loadgen resume {tree['folder']}" if resumes and tree.get("folder") else ""
    return _sentence(reason), go_on or str(tree.get("remedy") or "")


def _claim(tree: Tree) -> Claim:
    """Headline, figures and sentences of a valid run or study."""
    if tree.get("study") == matrix_table.KIND:
        return matrix_table.headline(tree), (), ()
    if tree.get("study") == "recipe":
        return f"Recorded for calibration: {tree['evidence']}", (), ()
    if tree.get("study") == "compare":
        return _compared(tree)
    if tree.get("verify"):
        found = tree["verify"]
        return (
            _sentence(engine_agreement.headline(found)),
            (),
            tuple(map(engine_agreement.line, found["comparisons"])),
        )
    if tree.get("probe"):
        return _probed(tree)
    return _capacity(tree)


def _compared(tree: Tree) -> Claim:
    if not tree.get("ratio"):
        return "No ratio was shown", (), ()
    found = tree["ratio"]
    interval = f"{found['low']:.3f} to {found['high']:.3f}"
    figures = ("Capacity of B / capacity of A", f"{found['value']:.3f}"), ("95 % interval", interval)
    headline = f"B carries {found['value']:.3f} times the load of A: {found['verdict']}"
    return headline, figures, tuple(map(_sentence, paired_ratio.lines(tree)))


def _probed(tree: Tree) -> Claim:
    """A probe offers one load: it judges the bounds there and is no capacity."""
    probe = tree["probe"]
    rate = f"{probe['rate_qps_per_node']:.4g} QPS per node"
    closed = probe.get("loop") == "closed"
    load = f"{probe['concurrency']} in flight (a closed loop, not a capacity)" if closed else rate
    return f"{load}: {summary.probe_verdict(probe)}", _p90s(probe), ()


def _p90s(measured: Tree) -> Figures:
    """Each p90 against its bound."""
    return tuple(
        (f"p90 {limit.upper()}, bound {figure(found['bound_ms'])} ms", f"{figure(found['p90_ms'])} ms")
        for limit in LIMITS
        if (found := measured[limit])["p90_ms"] is not None
    )


def _capacity(tree: Tree) -> Claim:
    capacity, asked = tree.get("capacity"), tree["asked"]
    if not capacity:
        return _sentence(summary.OPEN_WORDS.get(tree["exit_code"], "no capacity was found")), (), ()
    q, bounds = capacity["qps_per_node"], _bounds(asked)
    if capacity["open_above"]:
        why = f"Too little was seen over the bounds ({bounds}): a lower bound, not a capacity."
        return f"At least {qps(q['low'])} QPS per node", (), (why,)
    if capacity["open_below"]:
        why = f"The bounds ({bounds}) were missed in every window: an upper bound, not a capacity."
        return f"At most {qps(q['high'])} QPS per node", (), (why,)
    figures = (
        ("95 % interval", f"{qps(q['low'])} to {qps(q['high'])}"),
        ("Limited by", f"p90 {capacity['binding'].upper()}"),
    )
    answer = (
        f"One node serves {qps(q['estimate'])} requests per second within {bounds} "
        f"(95 % interval {qps(q['low'])} to {qps(q['high'])})."
    )
    quote = f"Quote {qps(q['certified'])}, the certified rate: {PROMISE}."
    headline = f"{qps(q['estimate'])} QPS per node, certified {qps(q['certified'])}"
    return headline, figures, (answer, quote, *_limits(tree))


def _limits(tree: Tree) -> list[str]:
    """The limit of the capacity, effects of nodes and routing, and the clock."""
    capacity, asked = tree["capacity"], tree["asked"]
    limit, likely = capacity["binding"], capacity["binding_probability"]
    surely = "probability unknown" if likely is None else f"probability {likely:.2f}"
    lines = [f"It is limited by p90 {limit.upper()} ({surely})."]
    if tree.get("nodes"):
        lines += [_sentence(line) for line in node_effects.lines(tree["nodes"])]
    elif asked["nodes"] > 1 and asked["routing"] != "per_node":
        count = asked["nodes"]
        lines.append(f"It is that of a node among {count} behind one balancer, not of a node alone.")
    lines += [_sentence(line) for line in routing_spread.lines(tree)]
    scale = asked.get("time_scale", 1)
    return lines + ([_sentence(summary.DILATED.format(scale))] if scale != 1 else [])


def _bounds(asked: Tree) -> str:
    slo = asked["slo"]
    return " and ".join(bound(limit, slo[f"{limit}_p90_ms"]) for limit in LIMITS)


def _sentence(line: str) -> str:
    """A line of `show` without its indent, with a capital if it begins with a plain word."""
    line = line.strip()
    return line[:1].upper() + line[1:] if line.partition(" ")[0].strip(",:").isalpha() else line
