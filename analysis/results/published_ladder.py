"""Levels of the MI325X paper's benchmark: their figures, its statuses, and what its tables could not show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results.json_border import to_tree
from analysis.rows import metrics, parquet, records
from analysis.stats.estimate import Estimate
from analysis.stats.pooling import repeated
from analysis.stats.quantiles import Floats, quantile

NS = 1e9
SUCCESS, SLOWER, GAIN = 0.95, 2.0, 1.05
"""Table 7: FAILING below this share of answers, DEGRADED above so many times the baseline's p99, SATURATED
below so many times the throughput before."""
PER_USER = 10
"""Fewest requests for each in flight; a level of fewer shows its filling and emptying (our choice)."""
DISTINCT, NEARLY = 3, 0.95
"""Lengths that are named one by one, where there are no more; and the share from which one speaks for all."""

PLANNED = ("phase", "shape", "concurrency", "requests", "prompt_tokens", "image_tokens")
"""The attributes of a level's plan that stand in its line; `published` is the paper's row, or None."""
MEANS = ("success", "total_tok_s", "output_tok_s", "image_tok_s", "p99_s", "in_flight", "seconds")


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """One level as one run saw it. Tokens per second count answered requests from the first send to the last
    token; `p99_s` is that of whole answers, a failed one infinitely late.

    `in_flight` is the mean number, by Little's law: answered time over the time that the level took.
    `prefix_hit` is None where the server does not report it.
    """

    requests: int
    success: float
    total_tok_s: float
    output_tok_s: float
    image_tok_s: float
    p99_s: float
    in_flight: float
    prefix_hit: float | None
    seconds: float
    answers: str


@dataclass(frozen=True, slots=True)
class LevelSpread:
    """The mean over runs with its 95 % t interval, and the runs' coefficient of variation."""

    mean: Estimate
    cov: float


@dataclass(frozen=True, slots=True)
class PublishedLevel:
    """The paper's row of a level; `left_out` says why it was not fitted, empty where it was."""

    table: str
    total_tok_s: float
    output_tok_s: float | None
    p99_s: float
    status: str
    left_out: str


@dataclass(frozen=True, slots=True)
class LevelErrors:
    """A level beside its published row; errors are shares of the published figure."""

    published: PublishedLevel
    error_total: float
    error_p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderLevel(LevelFigures):
    """One line of the ladder's table: what was asked, the means over all runs, and the paper's status.

    `capacity` is False of a level with too few requests to be one; `void` says why a level says nothing.
    """

    phase: str
    shape: str
    concurrency: int
    prompt_tokens: int
    image_tokens: int
    total_tok_s_spread: LevelSpread | None
    p99_s_spread: LevelSpread | None
    status: str
    plateau: bool
    capacity: bool
    beside: LevelErrors | None = None
    void: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderFigures:
    """The whole ladder; `rms` is that of ln error over the published rows that were fitted."""

    profile: str
    requests_per_user: int | None
    prompts: str
    lengths: str
    runs: int
    clock: str
    as_published: bool
    caution: str
    how: str
    levels: tuple[LadderLevel, ...]
    figures: tuple[tuple[LevelFigures, ...], ...]
    rms: float | None
    fit_rms: float | None
    source: str


def figures(rows: pa.Table) -> LevelFigures:
    """The figures of a level from all its requests. Raises ValueError of a level without requests."""
    if not rows.num_rows:
        raise ValueError("a level without requests has no figures")
    ok = metrics.status_in(rows, records.OK)
    e2e_s = metrics.e2e(rows) / 1e3
    due_ns = metrics.numbers(rows, "due_ns")
    end_ns = due_ns + metrics.numbers(rows, "end_offset_ns")
    seconds = float(np.nanmax(end_ns, initial=due_ns.min()) - due_ns.min()) / NS
    prompt, output = (metrics.numbers(rows, f"{name}_tokens")[ok] for name in ("prompt", "output"))
    images = np.nan_to_num(metrics.numbers(rows, "image_tokens")[ok])
    per_s = 1 / seconds if seconds > 0 else 0.0
    p99_s = quantile(e2e_s, 0.99)
    return LevelFigures(
        requests=rows.num_rows,
        success=float(ok.mean()),
        total_tok_s=float(np.nansum(prompt) + np.nansum(output)) * per_s,
        output_tok_s=float(np.nansum(output)) * per_s,
        image_tok_s=float(images.sum()) * per_s,
        p99_s=math.inf if p99_s is None else p99_s,
        in_flight=float(e2e_s[ok].sum()) * per_s,
        prefix_hit=metrics.prefix_hit(rows),
        seconds=seconds,
        answers=answers(output[~np.isnan(output)]),
    )


def answers(tokens: Floats) -> str:
    """The lengths of answers in a few words; lengths one apart are one."""
    if not len(tokens):
        return "none"
    lengths, counts = np.unique(tokens.astype(np.int64), return_counts=True)
    begins = np.flatnonzero(np.diff(lengths, prepend=-1) > 1)
    groups = zip(np.split(lengths, begins[1:]), np.add.reduceat(counts, begins), strict=True)
    ends = [(group[0], group[-1], float(count) / len(tokens)) for group, count in groups]
    shares = [(f"{low}" if low == high else f"{low}-{high}", share) for low, high, share in ends]
    span, most = max(shares, key=lambda share: share[1])
    if most >= NEARLY:
        return f"all {span}" if most == 1 else f"nearly all {span}"
    if len(shares) <= DISTINCT:
        return ", ".join(f"{span} ({100 * share:.0f} %)" for span, share in shares)
    low, middle, high = (float(quantile(tokens, q) or 0) for q in (0.1, 0.5, 0.9))
    return f"{low:.0f} | {middle:.0f} | {high:.0f} (10, 50, 90 %)"


def status(
    success: float, p99_s: float, total_tok_s: float, baseline_p99_s: float, before_tok_s: float | None
) -> str:
    """The paper's status of a level.

    In the order that its own tables follow: a level that is both slow and no faster than the one before is
    DEGRADED there (DeepSeek V3.2 at 200), so that a plateau goes untold: `plateau` tells it.
    """
    if success < SUCCESS:
        return "FAILING"
    if p99_s > SLOWER * baseline_p99_s:
        return "DEGRADED"
    return "SATURATED" if plateau(total_tok_s, before_tok_s) else "OK"


def plateau(total_tok_s: float, before_tok_s: float | None) -> bool:
    """True of a level with less than 1.05 times the throughput of the level before it."""
    return before_tok_s is not None and total_tok_s < GAIN * before_tok_s


def row(level: Any, runs: Sequence[LevelFigures], baseline_p99_s: float, before: float | None) -> LadderLevel:
    """A line of the table: the `PLANNED` level, the means of its runs with their spread, the paper's row."""
    plan: dict[str, Any] = {name: getattr(level, name) for name in PLANNED}
    means: dict[str, Any] = {name: float(np.mean([getattr(run, name) for run in runs])) for name in MEANS}
    hits = [run.prefix_hit for run in runs if run.prefix_hit is not None]
    total, p99_s = means["total_tok_s"], means["p99_s"]
    published: PublishedLevel | None = level.published
    beside = None
    if published:
        beside = LevelErrors(published, total / published.total_tok_s - 1, p99_s / published.p99_s - 1)
    return LadderLevel(
        **plan,
        **means,
        total_tok_s_spread=spread([run.total_tok_s for run in runs]),
        p99_s_spread=spread([run.p99_s for run in runs]),
        prefix_hit=float(np.mean(hits)) if hits else None,
        answers=runs[0].answers,
        status=status(means["success"], p99_s, total, baseline_p99_s, before),
        plateau=plateau(total, before),
        capacity=plan["requests"] >= PER_USER * plan["concurrency"],
        beside=beside,
    )


def spread(values: Sequence[float]) -> LevelSpread | None:
    """95 % t interval of the mean of runs and their coefficient of variation; None where there is none."""
    if len(values) < 2 or not all(math.isfinite(value) and value > 0 for value in values):
        return None
    of = repeated(values)
    return LevelSpread(of.mean, of.variation.value)


def rms(lines: Sequence[LadderLevel]) -> float | None:
    """The rms of ln of ours over published, throughput and p99 of every line that was fitted.

    None without one, or where a level has no throughput or no finite p99.
    """
    used = [(line, line.beside) for line in lines if line.beside and not line.beside.published.left_out]
    if any(line.total_tok_s <= 0 or not math.isfinite(line.p99_s) for line, _ in used):
        return None
    errors = [math.log1p(error) for _, level in used for error in (level.error_total, level.error_p99)]
    return math.sqrt(float(np.mean(np.square(errors)))) if errors else None


LEVELS = parquet.described("levels")
"""Columns of the Parquet file; units are those of the names, errors are shares of the published figure."""


def rows(ladders: Sequence[tuple[str, LadderFigures]]) -> pa.Table:
    """All levels of all models, each ladder by the name of its model, as columns."""
    flat = [{"model": model, **_flat(line)} for model, ladder in ladders for line in ladder.levels]
    return pa.Table.from_pylist(flat, schema=LEVELS)


def _flat(line: LadderLevel) -> dict[str, Any]:
    row = parquet.record_columns(LEVELS, line)
    for name, spread in (("total_tok_s", line.total_tok_s_spread), ("p99_s", line.p99_s_spread)):
        if spread:
            row |= {f"{name}_{end}": getattr(spread.mean, end) for end in ("low", "high")}
            row[f"{name}_cov"] = spread.cov
    if line.beside:
        published = to_tree(line.beside.published)
        row |= {f"published_{name}": value for name, value in published.items()}
        row |= {"error_total": line.beside.error_total, "error_p99": line.beside.error_p99}
    return row
