"""Figures of the service and its answers in a window: late engine, lost replicas, other prompts."""

import math
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.rows import failures, foreign_words, metrics, records, routing_spread
from analysis.rows.metrics import Floats
from analysis.stats.estimate import NORMAL_95
from analysis.stats.quantiles import quantile
from conf.specs.experiment import Slo

PATH_SHARE = 0.1
"""A p90 of the time outside the engine above this share of the TTFT bound voids (our choice)."""
PATH_QUANTILE = 0.9
FORM_SHARE = 0.01
"""Largest share of answers that failed for a reason other than load (our choice): they count as late, and a
hundredth of them lowers the capacity under a p90 by about a hundredth."""
LEAST_BROKEN = 3
"""Fewest broken answers of a warm-up that show a fault without load (our choice)."""
LEAST_QUEUE_TOLD = 0.99
"""Least share of the answers that tell their time in the queue, where a bound asks for it (our choice)."""
BLOCK_TOKENS = 16
"""vLLM's default block: a prefix cache serves whole ones, the rest of what is shared is computed anew."""


def engine(rows: pa.Table) -> float | None:
    """Share of the simulated engine's steps that were late by more than half of themselves.

    Unknown for any other engine.

    Each step counts once for every request that it gave a token.
    """
    steps = np.nansum(metrics.numbers(rows, "engine_steps"))
    late = np.nansum(metrics.numbers(rows, "engine_late_steps"))
    return float(late / steps) if steps > 0 else None


def path(rows: pa.Table) -> float | None:
    """p90 of the real ms outside an engine that reported its own time, which no slow engine makes longer."""
    return quantile(_path(rows), PATH_QUANTILE)


def path_over(rows: pa.Table, slo: Slo) -> float | None:
    """Share of the answers whose time outside the engine alone exceeded the TTFT bound.

    A process that stands still for seconds of a long window moves no p90, but adds such answers.
    """
    path = _path(rows)
    return float(np.mean(path > slo.first_token_ms)) if len(path) else None


def _path(rows: pa.Table) -> Floats:
    """Real time in ms outside the engine, of the answers that report it."""
    path = metrics.path(rows)[metrics.status_in(rows, records.OK)]
    known: Floats = path[~np.isnan(path)]
    return known


def replicas(rows: pa.Table, expected: Collection[str] | None) -> float | None:
    """Answers of replicas other than the expected ones."""
    seen = set(pc.unique(rows.column("replica_id").cast(pa.string()).drop_null()).to_pylist())
    return None if expected is None or not seen else float(len(seen.difference(expected)))


def malformed(rows: pa.Table, unloaded: pa.Table | None) -> float:
    """Share of the answers that failed for their form and not for load.

    Answers that broke off or hold an error count too where load is not the cause: the warm-up, `unloaded`,
    had more than `FORM_SHARE` of them, and the window has no clearly larger share.
    """
    total = failures.answered(rows)
    count, broken = int(failures.malformed(rows).sum()), int(failures.broken(rows).sum())
    if broken and unloaded is not None and not _grown(unloaded, broken / total, total):
        count += broken
    return count / total if count else 0.0


def _grown(unloaded: pa.Table, share: float, total: int) -> bool:
    """True if a share of broken answers is larger than without load: one chance in 20 if they are equal."""
    before, broken = failures.answered(unloaded), int(failures.broken(unloaded).sum())
    own = broken / max(before, 1)
    if broken < LEAST_BROKEN or own <= FORM_SHARE:
        return True
    mean = (own * before + share * total) / (before + total)
    return share - own > NORMAL_95 * math.sqrt(mean * (1 - mean) * (1 / before + 1 / total))


def burst(rows: pa.Table) -> float | None:
    """Share of the answers of 10 tokens or more that were held back on their way (`metrics.burst`)."""
    reads, tokens = metrics.numbers(rows, "reads"), metrics.numbers(rows, "output_tokens")
    known = metrics.status_in(rows, records.OK) & (tokens >= metrics.BURST_TOKENS) & ~np.isnan(reads)
    return float(np.mean(metrics.burst(rows)[known])) if known.any() else None


def hidden(rows: pa.Table) -> float | None:
    """Share of the answers whose text does not account for the tokens that the server counts."""
    whole = metrics.status_in(rows, records.OK)
    return float(np.mean(metrics.hidden(rows)[whole])) if whole.any() else None


def prompts(rows: pa.Table) -> float | None:
    """Relative error of the planned prompt tokens against the server's usage."""
    counted = metrics.numbers(rows, "prompt_tokens")
    planned = metrics.numbers(rows, "requested_input_tokens")
    known = ~np.isnan(counted) & (planned > 0)
    return abs(float(counted[known].sum() / planned[known].sum()) - 1) if known.any() else None


def prefix_hits(rows: pa.Table, block_tokens: int = BLOCK_TOKENS) -> float | None:
    """Difference of the prefix cache's share of the prompt tokens from the share that the plan has in common.

    Shared tokens in an incomplete last block, up to `block_tokens` - 1, may be computed anew. With sessions
    the hits depend on the routing, which is measured: then the figure is unknown. Those of a trace may be
    fewer, as caches forget and replicas are several, but not more.
    """
    if routing_spread.with_sessions(rows):
        return None
    if metrics.reused(rows):
        rows = rows.filter(metrics.numbers(rows, "prompt_tokens") > 0)  # others have hits that nobody told
    hit = metrics.prefix_hit(rows)
    most, least = metrics.prefix_shared(rows), metrics.prefix_shared(rows, block_tokens - 1)
    fewer = 0.0 if metrics.reused(rows) else least - (hit or 0.0)
    return None if hit is None else max(hit - most, fewer, 0.0)


def queue_told(rows: pa.Table) -> float | None:
    """Share of the answers that tell their time in the server's queue."""
    told = ~np.isnan(metrics.queue(rows)[metrics.status_in(rows, records.OK)])
    return float(np.mean(told)) if len(told) else None


def folded_names(rows: pa.Table) -> float:
    """Answers whose replica or finish reason lost its own name."""
    folded = metrics.word_in(rows, "replica_id", foreign_words.OTHER) | metrics.word_in(
        rows, "finish_reason", foreign_words.OTHER
    )
    return float(folded.sum())


def achieved(rows: pa.Table) -> float | None:
    """Answered of offered, by the due time; those still in flight (the backlog) count on neither side."""
    offered = rows.num_rows - int(metrics.status_in(rows, records.PENDING).sum())
    return int(metrics.status_in(rows, records.OK).sum()) / offered if offered else None
