"""The answer of a study: its parts, their spread, the ratio of two, cells of a grid, a gate, the ladder."""

from collections.abc import Iterator, Mapping, Sequence

from analysis.capacity.paired_ratio import Ratio
from analysis.quality.gate import GateVerdict, MeanInterval
from analysis.results.experiment_facts import named
from analysis.results.predictions import PredictionVerdict
from analysis.results.published_ladder import PER_USER, LadderFigures, LadderLevel
from analysis.results.runs import RECORDED
from analysis.results.verdicts import PAIRED, REFERENCE, UNPAIRED, MatrixCell, PartRow, StudyVerdict, Verdict
from analysis.stats.estimate import UNKNOWN, certified, interval, middle, number, span
from analysis.views import rates
from analysis.views.shown import Answer, Cell, Fact, Table
from conf.specs.bounds import label

MOST_KEYS = 4
"""Keys that differ between A and B and stand among the facts."""
WITHOUT_CAPACITY = ("recipe", "quality")
"""Studies whose parts record answers or loads, and claim no capacity."""
PART_HEADS = (
    *("QPS per node", "95 % interval", "certified", "limited by", "ratio", "how", "seed", "result"),
)
NO_RESULT = "refused", "no result (", "open ("
NO_SIGN = "Divergence has no sign: it says that answers differ, and A decides what is right."
ANSWERS = {
    "SAME": "B answers as A does, within the margins",
    "DEGRADED": "B's answers differ from A's by more than a margin",
    "UNDECIDED": "neither is shown",
}


def headline(study: StudyVerdict) -> str:
    """The answer in one line."""
    if study.is_matrix:
        cells = study.cells or ()
        return f"{sum(cell.exit_code == 0 for cell in cells)} of {len(cells)} cells have a capacity"
    if not study.valid:
        return "no capacity is claimed"
    if gate := study.quality:
        return f"{ANSWERS[gate.verdict]} ({gate.compared} prompts compared)"
    if study.ratio:
        return f"B / A = {span(study.ratio.estimate)} (95 %): {study.ratio.verdict}"
    if study.study == "compare":
        return "no ratio was shown"
    if study.study == "recipe":
        return f"{study.evidence}: python -m analysis calibrate {study.folder} --out FILE"
    return rates.capacity_headline(study)


def facts(study: StudyVerdict) -> Iterator[Fact]:
    """What the parts show together."""
    changed = [f"{key} {ours} -> {theirs}" for key, (ours, theirs) in (study.differs or {}).items()]
    if changed and (study.ratio or study.quality):
        more = f" and {len(changed) - MOST_KEYS} more (study.json)" if len(changed) > MOST_KEYS else ""
        yield "from A to B", f"{', '.join(changed[:MOST_KEYS])}{more}"
    if study.ratio:
        yield from _ratio_facts(study.ratio)
    if between := study.between:
        yield f"pooled over {study.evidence}", f"sd between them {span(between.sd_pct)} %"
        yield "noise within one", f"sd {number(between.within_sd_pct, 3)} %"
    for name, effect in (study.effects_pct or {}).items():
        yield f"{name} against the mean", f"{span(effect)} %"
    if study.variation_pct:
        yield f"mean of {study.evidence}", f"coefficient of variation {span(study.variation_pct)} %"


def _ratio_facts(ratio: Ratio) -> Iterator[Fact]:
    correlation = "unknown" if ratio.correlation is None else f"{ratio.correlation:.2f}"
    pairs = f"B got A's arrivals and lengths, scaled in time; correlation {correlation}"
    yield f"{ratio.pairs} pairs of windows", pairs
    for limit, limit_ratio in ratio.limits.items():
        weight = f"{100 * limit_ratio.weight:.0f} % of what was over a bound"
        yield f"by {label(limit)} alone", f"{span(limit_ratio.estimate)}, {weight}"
    if ratio.unlike:
        why = "A and B are limited by different bounds: the ratio is that of the two capacities alone"
        yield "unpaired", why


def tables(study: StudyVerdict) -> tuple[Table, ...]:
    """The parts or cells, and the evidence of a quality gate."""
    return table(study), *(gate_tables(study.quality) if study.quality else ())


def table(study: StudyVerdict, links: Mapping[str, Cell] | None = None) -> Table:
    """Every part, or cell, with its answer or the reason why it has none; `links` lead to their reports.

    A column in which no part has anything is left out.
    """
    parts: dict[str, PartRow | MatrixCell] = {row.name: row for row in study.cells or study.parts}
    recorded = RECORDED if study.study in WITHOUT_CAPACITY else ()
    lines = [
        ((links or {}).get(name, name), *_row(parts.get(name), study.axes or (), recorded))
        for name in (parts if study.is_matrix else study.names)
    ]
    heads = "cell" if study.is_matrix else "part", *(study.axes or ()), *PART_HEADS
    kept = [place for place, column in enumerate(zip(heads, *lines, strict=True)) if any(column[1:])]
    shown, *rows = (tuple(line[place] for place in kept) for line in (heads, *lines))
    failed = tuple("failed" if str(row[-1]).startswith(NO_RESULT) else "" for row in rows)
    return Table("", tuple(map(str, shown)), tuple(rows), tones=failed, state=len(kept) - 1)


def _row(part: PartRow | MatrixCell | None, axes: Sequence[str], recorded: Sequence[int]) -> tuple[str, ...]:
    """The cells of a part behind its name; a code of `recorded` is a result without a capacity."""
    if part is None:
        return *[""] * (len(axes) + len(PART_HEADS) - 1), "no result yet"
    cell = part if isinstance(part, MatrixCell) else None
    seed = UNKNOWN if isinstance(part, PartRow) and part.seed is None else str(getattr(part, "seed", ""))
    at = (str(cell.at.get(axis)) for axis in axes) if cell else ()
    q = part.qps_per_node if part.exit_code in (0, 6) else None
    if q is None:
        if part.exit_code is None:
            result = "not measured yet"
        elif part.exit_code in recorded:
            result = "recorded"
        else:
            what = "refused" if cell and part.exit_code == 2 else "no result"
            result = f"{what} (exit {part.exit_code}): {part.reason}".removesuffix(": ")
        return *at, *[""] * (len(PART_HEADS) - 2), seed, result
    capacity = (span(q), "", "") if q.is_bound else (middle(q), interval(q), certified(q))
    ratio = ("", "")
    if cell and cell.ratio:
        ratio = "1" if cell.ratio.how == REFERENCE else span(cell.ratio.estimate), cell.ratio.how
    simulated = f"SIMULATED, {part.simulated}" if part.simulated else ""
    result = f"valid ({simulated})" if simulated else "valid"
    if part.exit_code:
        how = ", ".join(filter(None, (f"exit {part.exit_code}", simulated)))
        result = f"open ({how}): {part.reason}".removesuffix(": ")
    return *at, *capacity, label(part.binding) if part.binding else UNKNOWN, *ratio, seed, result


def notes(study: StudyVerdict) -> list[str]:
    """The grounds of the ratios of a grid; a ratio holds no constants."""
    reasons: dict[str, list[str]] = {}
    for cell in study.cells or ():
        if cell.ratio and cell.ratio.how == UNPAIRED:
            reasons.setdefault(cell.ratio.why, []).append(cell.name)
    lines, ratios = [], [cell.ratio.how for cell in study.cells or () if cell.ratio]
    if len(ratios) > 1:
        over = "ratio: capacity over that of the reference"
        lines.append(f"{over}, each with a 95 % interval of sampling noise alone")
        lines.append("each service was deployed once: how far deployments differ is in no interval")
    if PAIRED in ratios:
        paired = ((cell.name, cell.ratio) for cell in study.cells or () if cell.ratio)
        pairs = ", ".join(f"{name} {ratio.pairs}" for name, ratio in paired if ratio.how == PAIRED)
        alike = "got the same arrivals and lengths, scaled in time (common random numbers)"
        lines.append(f"paired: {alike}; pairs of windows: {pairs}")
    return lines + [f"unpaired, {', '.join(names)}: {why}" for why, names in reasons.items()]


def gate_tables(gate: GateVerdict) -> tuple[Table, Table]:
    """The intervals of a quality gate, and each side beside A's first answers."""
    intervals = Table(
        f"{gate.verdict} after {gate.prompts} prompts: B beyond A's own repeat",
        ("quantity", "estimate", "lower end", "upper end", "margin", "shown"),
        (
            _interval("mean excess divergence, nats per token", gate.excess_nats, gate.nats, 1.0),
            _interval("excess of broken prompts, %", 100 * gate.excess_broken, gate.broken, 100.0),
            _interval("excess of unanswered prompts, %", None, gate.unanswered, 100.0),
        ),
        note=f"The ends hold at every moment (95 %). {NO_SIGN}",
    )
    heads = "answers", "mean divergence, nats", "broken prompts", "other tokens", "positions at risk"
    sides = ("A again", "again", gate.again), ("B", "candidate", gate.candidate)
    rows = tuple(
        (name, number(pair.mean_nats), *map(str, (pair.broken, pair.flips, pair.at_risk, gate.failed[side])))
        for name, side, pair in sides
    )
    note = f"{gate.compared} prompts were answered by all; {gate.failed['base']} not by A the first time."
    return intervals, Table("Each beside A's first answers", (*heads, "unanswered"), rows, note=note)


def _interval(name: str, estimate: float | None, ends: MeanInterval, unit: float) -> tuple[str, ...]:
    shown = "below the margin" if ends.is_below else "above the margin" if ends.is_above else "neither"
    return name, number(estimate), *(number(unit * end) for end in (ends.low, ends.high, ends.margin)), shown


LEVEL = ("phase", "C", "N", "tok/s", "out", "p99 s", "ok %", "status", "in flight", "hits %", "answers")
PUBLISHED = ("paper tok/s", "p99 s", "status")


def ladder_answer(verdict: Verdict, ladder: LadderFigures, word: str, tone: str) -> Answer:
    """The levels of one model, and what must be read beside them."""
    experiment = verdict.experiment
    engines = f"{experiment.replicas} replica(s), layout {experiment.layout}, of {experiment.hardware}"
    if experiment.engine == "external":
        engines = f"{experiment.nodes} node(s) of {named('hardware', experiment.hardware)}"
    head = (
        f"{named('model', experiment.model)} on {engines}, {experiment.engine} engine, {ladder.clock} clock"
    )
    folder = "" if isinstance(verdict, PredictionVerdict) else verdict.folder
    facts = ("how", ladder.how), ("why", verdict.reason), ("run folder", folder)
    known, beside = tuple(fact for fact in facts if fact[1]), any(line.beside for line in ladder.levels)
    apart = "error of both" if ladder.as_published else "apart, other counts"
    heads = (*LEVEL, *((*PUBLISHED, apart) if beside else ()), "")
    rows = tuple(
        (*_level(line), *(_beside(line) if beside else ()), f"VOID: {line.void}" if line.void else "")
        for line in ladder.levels
    )
    table = Table("", heads, rows, tones=tuple("failed" if line.void else "" for line in ladder.levels))
    return Answer(word, tone, head, known, (table,), tuple(_ladder_notes(ladder)))


def _level(line: LadderLevel) -> tuple[str, ...]:
    return (
        line.phase,
        str(line.concurrency),
        str(line.requests),
        f"{line.total_tok_s:.0f}",
        f"{line.output_tok_s:.0f}",
        f"{line.p99_s:.2f}",
        f"{100 * line.success:.1f}",
        f"{line.status}{'' if line.capacity else ' *'}",
        f"{line.in_flight:.1f}",
        "unknown" if line.prefix_hit is None else f"{100 * line.prefix_hit:.0f}",
        f"{line.shape}: {line.answers}" if line.shape else line.answers,
    )


def _beside(line: LadderLevel) -> tuple[str, ...]:
    if line.beside is None:
        return ("",) * (len(PUBLISHED) + 1)
    published = line.beside.published
    errors = f"{100 * line.beside.error_total:+.1f} / {100 * line.beside.error_p99:+.1f} %"
    mark = " x" if published.left_out else ""
    status = published.status or "-"
    return f"{published.total_tok_s:.0f}", f"{published.p99_s:.2f}", status, f"{errors}{mark}"


NO_NOISE = 1e-9
"""Variation below which runs are the same: this engine has no noise."""


def _ladder_notes(ladder: LadderFigures) -> Iterator[str]:
    """The paper's blind spots in this table, in sentences."""
    lines = ladder.levels
    if few := [line for line in lines if not line.capacity]:
        yield (
            f"* not a capacity: fewer than {PER_USER} requests for each one in flight, in {len(few)} of "
            f"{len(lines)} levels; progressive.requests_per_user={PER_USER} sends as many"
        )
    if ladder.caution:
        yield ladder.caution
    if covs := [line.total_tok_s_spread.cov for line in lines if line.total_tok_s_spread]:
        spread = f"CoV of tok/s {100 * min(covs):.2g} to {100 * max(covs):.2g} %"
        yield f"{ladder.runs} runs: {spread if max(covs) >= NO_NOISE else 'all the same'}"
    for line in lines:
        if line.beside and line.beside.published.left_out:
            yield f"x not fitted: {line.phase} {line.concurrency}, {line.beside.published.left_out}"
    if ladder.rms is not None:
        yield (
            f"rms of ln error over the published rows that were fitted: {100 * ladder.rms:.1f} %; the "
            f"fit's own training error is {100 * (ladder.fit_rms or 0.0):.1f} % (docs/engine_checks.md)"
        )
