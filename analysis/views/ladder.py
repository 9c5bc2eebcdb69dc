"""The answer of the published ladder: its levels beside the paper's, and what the paper could not show."""

import math
from collections.abc import Iterator

from analysis.results.asked import named
from analysis.results.predictions import PredictionVerdict
from analysis.results.published_ladder import PER_USER, LadderFigures, LadderLevel
from analysis.results.verdicts import Verdict
from analysis.views.shown import Answer, Table

HEADS = ("phase", "C", "N", "tok/s", "out", "p99 s", "ok %", "status", "in flight", "hits %", "answers")
PUBLISHED = ("paper tok/s", "p99 s", "status")


def answer(verdict: Verdict, ladder: LadderFigures, word: str, tone: str) -> Answer:
    """The levels of one model, and what must be read beside them."""
    asked = verdict.asked
    engines = f"{asked.replicas} replica(s), layout {asked.layout}, of {asked.hardware}"
    if asked.engine == "external":
        engines = f"{asked.nodes} node(s) of {named('hardware', asked.hardware)}"
    head = f"{named('model', asked.model)} on {engines}, {asked.engine} engine, {ladder.clock} clock"
    folder = "" if isinstance(verdict, PredictionVerdict) else verdict.folder
    facts = ("how", ladder.how), ("why", verdict.reason), ("run folder", folder)
    return Answer(
        word, tone, head, tuple(fact for fact in facts if fact[1]), (_table(ladder),), tuple(_notes(ladder))
    )


def _table(ladder: LadderFigures) -> Table:
    beside = any(line.beside for line in ladder.levels)
    apart = "error of both" if ladder.as_published else "apart, other counts"
    heads = (*HEADS, *((*PUBLISHED, apart) if beside else ()), "")
    rows = tuple(
        (*_level(line), *(_beside(line) if beside else ()), f"VOID: {line.void}" if line.void else "")
        for line in ladder.levels
    )
    tones = tuple("failed" if line.void else "" for line in ladder.levels)
    return Table("", heads, rows, tones=tones, folded=False)


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


def _notes(ladder: LadderFigures) -> Iterator[str]:
    """The paper's blind spots in this table, in sentences."""
    lines = ladder.levels
    if few := [line for line in lines if not line.capacity]:
        yield (
            f"* not a capacity: fewer than {PER_USER} requests for each one in flight, in {len(few)} of "
            f"{len(lines)} levels; progressive.requests_per_user={PER_USER} sends as many"
        )
    if ladder.caution:
        yield ladder.caution
    if short := [line for line in lines if line.in_flight < 0.5 * line.concurrency]:
        worst = min(short, key=lambda line: line.in_flight / line.concurrency)
        yield (
            f"C is not what was in flight: {worst.in_flight:.0f} in the mean at C = {worst.concurrency} "
            f"({worst.phase}), less than half of C in {len(short)} of {len(lines)} levels"
        )
    yield from _spread_notes(ladder)
    most = max(lines, key=lambda line: line.total_tok_s)
    if most.image_tok_s:
        yield (
            f"of {most.total_tok_s:.0f} tok/s at most, {most.image_tok_s:.0f} are image tokens, "
            f"{most.total_tok_s - most.image_tok_s - most.output_tok_s:.0f} text and "
            f"{most.output_tok_s:.0f} output: totals do not compare with those of text alone"
        )
    published = [(line, line.beside.published) for line in lines if line.beside]
    judged = [(line, row.status) for line, row in published if row.status]
    if apart := [f"{line.phase} {line.concurrency}" for line, status in judged if line.status != status]:
        levels = f"{len(apart)} of {len(judged)} levels: {', '.join(apart)}"
        yield f"the status is not the paper's in {levels}"
    for line, row in published:
        if row.left_out:
            yield f"x not fitted: {line.phase} {line.concurrency}, {row.left_out}"
    if ladder.rms is not None:
        yield (
            f"rms of ln error over the published rows that were fitted: {100 * ladder.rms:.1f} %; the "
            f"fit's own training error is {100 * (ladder.fit_rms or 0.0):.1f} % (docs/engine_checks.md)"
        )


def _spread_notes(ladder: LadderFigures) -> Iterator[str]:
    runs, spreads = ladder.runs, [(line, line.total_tok_s_spread) for line in ladder.levels]
    known = [(line, spread) for line, spread in spreads if spread]
    if runs < 2:
        yield f"{runs} run: no interval"
    elif known:
        covs = [spread.cov for _, spread in known]
        if max(covs) < 1e-9:
            none = "this engine has no noise (engine=simulated_aiter has the paper's)"
            yield f"{runs} runs, all the same: {none}"
            return
        halves = [(line, (spread.mean.high or math.inf) - line.total_tok_s) for line, spread in known]
        widest, half = max(halves, key=lambda pair: pair[1])
        yield (
            f"{runs} runs: CoV of tok/s {100 * min(covs):.2g} to {100 * max(covs):.2g} %; widest 95 % t "
            f"interval {widest.total_tok_s:.0f} +- {half:.0f} tok/s (C = {widest.concurrency}); "
            "--json and --out have all"
        )
