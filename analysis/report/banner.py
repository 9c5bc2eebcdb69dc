"""The banner of a page: the claim with its interval, or the reason why nothing is claimed and a remedy.

Shows a figure only where the verdict claims it.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from analysis.capacity.rules import REASONS
from analysis.report.blocks import Banner
from analysis.report.wording import bound, figure
from analysis.results import integrity, joint, matrix_table, studies, summary
from analysis.results.runs import Run
from analysis.results.text import capacity_text, probe_text, quality_text, ratio_text, sessions_text
from analysis.results.types.probe_figures import ProbeFigures
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.shared_figures import CapacityFigures
from analysis.results.types.study_verdict import StudyVerdict
from analysis.stats.estimate import certified, interval, middle, span
from conf.specs.bounds import label

Verdict = RunVerdict | StudyVerdict
Figures = tuple[tuple[str, str], ...]
Claim = tuple[str, Figures, tuple[str, ...]]
"""A headline, its few figures, and the sentences below."""

LONGER = "Search longer: search=standard takes 15 minutes, or raise search.budget_s."
PROMISE = "with 95 % probability a node keeps its bounds at this rate"


def of_run(run: Run) -> Banner:
    """The banner of a run, killed or ended."""
    if found := integrity.altered(run.path):
        return altered(found)
    return unfinished(run) if run.verdict is None else of_verdict(run.verdict)


def of_study(path: Path, verdict: StudyVerdict) -> Banner:
    """The banner of a study."""
    found = integrity.altered(path)
    return altered(found) if found else of_verdict(verdict)


def altered(found: Sequence[str]) -> Banner:
    """The banner of a folder whose files changed since they were written."""
    return Banner(
        "ALTERED",
        "bad",
        "No capacity is claimed: its files are not as they were written",
        sentences=tuple(found[: integrity.MOST_NAMED]),
    )


def of_verdict(verdict: Verdict) -> Banner:
    """The banner of the verdict of a run or study."""
    valid = verdict.valid
    headline, figures, sentences = _claim(verdict) if valid else (_nothing(verdict), (), ())
    good = valid and verdict.exit_code == summary.EXIT_OK
    cause, remedy = _why(verdict)
    return Banner(
        word=f"{summary.lead(verdict)}{summary.word(verdict)}",
        tone="good" if good else "short" if valid else "bad",
        headline=headline,
        figures=figures,
        sentences=tuple(
            line for line in (cause, *sentences) if line and line.lower() not in headline.lower()
        ),
        remedy=remedy,
        label=_sentence(summary.engine_label(verdict)),
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


def _nothing(verdict: Verdict) -> str:
    one_load = isinstance(verdict, RunVerdict) and verdict.probe
    return "Nothing is concluded" if one_load else "No capacity is claimed"


def _why(verdict: Verdict) -> tuple[str, str]:
    """The reason why nothing, or only a bound, is claimed, and the remedy."""
    code, _, rest = verdict.reason.partition(": ")
    if code in REASONS:
        return f"{REASONS[code].cause} ({code})", rest or REASONS[code].remedy
    capacity, study = verdict.capacity, isinstance(verdict, StudyVerdict)
    if verdict.valid and capacity and (capacity.open_above or capacity.open_below):
        return _sentence(verdict.reason), "" if capacity.queue_grew else LONGER
    resumes = (study or verdict.verb == "sweep") and summary.resumable(verdict)
    if resumes and verdict.folder:
        return _sentence(verdict.reason), f"To go on: python -m loadgen resume {verdict.folder}"
    return _sentence(verdict.reason), (verdict.remedy or "") if isinstance(verdict, StudyVerdict) else ""


def _claim(verdict: Verdict) -> Claim:
    """Headline, figures and sentences of a valid run or study."""
    if isinstance(verdict, StudyVerdict):
        if verdict.study == matrix_table.KIND:
            return matrix_table.headline(verdict), (), ()
        if verdict.study == "recipe":
            return f"Recorded for calibration: {verdict.evidence}", (), ()
        if verdict.study == "quality":
            return _gated(verdict)
        return _compared(verdict) if verdict.study == "compare" else _capacity(verdict)
    return _probed(verdict.probe) if verdict.probe else _capacity(verdict)


def _compared(verdict: StudyVerdict) -> Claim:
    ratio = verdict.ratio
    if not ratio:
        return "No ratio was shown", (), ()
    shown = middle(ratio.estimate)
    figures = ("Capacity of B / capacity of A", shown), ("95 % interval", interval(ratio.estimate))
    headline = f"B carries {shown} times the load of A: {ratio.verdict}"
    return headline, figures, tuple(map(_sentence, ratio_text.lines(verdict, ratio)))


def _gated(verdict: StudyVerdict) -> Claim:
    """A gate claims no capacity: its verdict on the answers, with both intervals."""
    found = verdict.quality
    if not found:
        return "No answers were compared", (), ()
    nats, broken = found.nats, found.broken
    figures = (
        ("Mean excess divergence", f"{nats.low:.4f} to {nats.high:.4f} nats, margin {nats.margin:g}"),
        (
            "Excess of broken prompts",
            f"{100 * broken.low:.2f} to {100 * broken.high:.2f} %, margin {100 * broken.margin:g} %",
        ),
    )
    lines = quality_text.lines(verdict, found)
    return _sentence(quality_text.headline(found)), figures, tuple(map(_sentence, filter(None, lines)))


def _probed(probe: ProbeFigures) -> Claim:
    """A probe offers one load: it judges the bounds there and is no capacity."""
    load = f"{probe.rate_qps_per_node:.4g} QPS per node"
    if probe.loop == "closed":
        load = f"{probe.concurrency} in flight (a closed loop, not a capacity)"
    return f"{load}: {probe_text.verdict(probe)}", _p90s(probe), ()


def _p90s(probe: ProbeFigures) -> Figures:
    """Each limited quantile against its bound."""
    return tuple(
        (f"{label(limit)}, bound {figure(found.bound_ms)} ms", f"{middle(found.ms)} ms")
        for limit, found in probe.limits.items()
        if found.ms is not None
    )


def _capacity(verdict: Verdict) -> Claim:
    capacity = verdict.capacity
    if not capacity:
        return _sentence(summary.OPEN_WORDS.get(verdict.exit_code or 0, "no capacity was found")), (), ()
    q, bounds = capacity.qps_per_node, _bounds(verdict)
    kinds = map(_sentence, capacity_text.kind_lines(verdict, capacity))
    if capacity.open_above:
        why = f"Too little was seen over the bounds ({bounds}): a lower bound, not a capacity."
        return _sentence(f"{span(capacity.claimed)} QPS per node"), (), (why, *kinds)
    if capacity.open_below:
        missed = f"The bounds ({bounds}) were missed in every window: an upper bound, not a capacity."
        # A queue that grew is the reason of the verdict already.
        own = () if capacity.queue_grew else (missed,)
        return _sentence(f"{span(capacity.claimed)} QPS per node"), (), (*own, *kinds)
    headline = f"{middle(q)} QPS per node, certified {certified(q)}"
    kind, ends = joint.kind(verdict.asked, capacity), interval(q)
    named, caveat = "95 % interval", ""
    noise: Figures = ()
    if kind:
        named += f", {kind}"
        held = capacity_text.held(capacity)
        caveat = f" Say with it that the node is simulated. That 95 % is {kind}: {held}."
    if capacity.constants:
        alone = interval(capacity.sampling)
        noise = ((_sentence(capacity_text.noise_name(verdict)), alone),)
    figures = (named, ends), *noise, ("Limited by", label(capacity.binding))
    spans = "; ".join([f"{named}: {ends}", *(f"{name.lower()}: {alone}" for name, alone in noise)])
    one = "One simulated node" if kind else "One node"
    answer = f"{one} serves {middle(q)} requests per second within {bounds} ({spans})."
    quote = f"Quote {certified(q)}, the certified rate: {PROMISE}.{caveat}"
    return headline, figures, (answer, quote, *_limits(verdict, capacity))


def _limits(verdict: Verdict, capacity: CapacityFigures) -> list[str]:
    """The limit of the capacity, effects of nodes and routing, and the clock."""
    asked = verdict.asked
    limit, likely = capacity.binding, capacity.binding_probability
    surely = "probability unknown" if likely is None else f"probability {likely:.2f}"
    lines = [f"It is limited by {label(limit)} ({surely})."]
    if isinstance(verdict, RunVerdict) and verdict.nodes:
        lines += [_sentence(line) for line in capacity_text.node_lines(verdict.nodes)]
    elif asked.nodes > 1 and asked.routing != "per_node":
        lines.append(f"It is that of a node among {asked.nodes} behind one balancer, not of a node alone.")
    if isinstance(verdict, RunVerdict):
        lines += [_sentence(line) for line in sessions_text.lines(asked, verdict.windows)]
    scale = asked.time_scale
    return lines + ([_sentence(summary.DILATED.format(scale))] if scale != 1 else [])


def _bounds(verdict: Verdict) -> str:
    return " and ".join(bound(verdict.asked.slo, limit) for limit in verdict.asked.slo.limits)


def _sentence(line: str) -> str:
    """A line of `show` without its indent, with a capital if it begins with a plain word."""
    line = line.strip()
    return line[:1].upper() + line[1:] if line.partition(" ")[0].strip(",:").isalpha() else line
