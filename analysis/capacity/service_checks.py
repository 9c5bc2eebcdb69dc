"""Checks of the service and its answers in a window: late engine, lost replicas, other prompts."""

import math
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.capacity.check import Check, at_least, at_most
from analysis.capacity.window_counts import PATH_MS
from analysis.rows import failures, foreign_words, metrics, records, routing_spread
from analysis.rows.metrics import Floats
from analysis.stats.estimate import NORMAL_95
from analysis.stats.quantiles import quantile
from conf.specs.experiment import Slo

PATH_SHARE = 0.1
"""A p90 of the time outside the engine above this share of the TTFT bound voids (our choice)."""
PATH_QUANTILE = 0.9
PATH_OVER = 0.01
"""Largest share of the answers that the path alone made late: above it a window is void."""
LEAST_ACHIEVED = 0.98
LATE_STEPS = 0.01
"""Largest share of late steps (late by more than half of themselves): above it their p99 lateness is too
high."""
BURST_SHARE = 0.01
HIDDEN_SHARE = 0.01
"""Largest share of the answers that count tokens which they never stream (our choice)."""
PROMPT_ERROR = 0.01
"""Mean prompt length by the server's count may differ from the plan by this share (our choice)."""
HIT_ERROR = 0.01
"""Largest distance of the prefix cache's share of the prompt tokens from the intended (the method, 5.2)."""
FORM_SHARE = 0.01
"""Largest share of answers that failed for a reason other than load (our choice): they count as late, and a
hundredth of them lowers the capacity under a p90 by about a hundredth."""
LEAST_BROKEN = 3
"""Fewest broken answers of a warm-up that show a fault without load (our choice)."""
LEAST_QUEUE_TOLD = 0.99
"""Least share of the answers that tell their time in the queue, where a bound asks for it (our choice)."""
BLOCK_TOKENS = 16
"""vLLM's default block: a prefix cache serves whole ones, the rest of what is shared is computed anew."""


def engine(rows: pa.Table) -> Check:
    """Share of the simulated engine's steps that were late; unknown for any other engine.

    Each step counts once for every request that it gave a token.
    """
    steps = np.nansum(metrics.numbers(rows, "engine_steps"))
    late = np.nansum(metrics.numbers(rows, "engine_late_steps"))
    return at_most(
        "engine_late_steps", float(late / steps) if steps > 0 else None, LATE_STEPS, "", "engine_late"
    )


def path(rows: pa.Table, slo: Slo) -> Check:
    """p90 of the real time outside an engine that reported its own, which no slow engine makes longer.

    The part before the engine displaces the arrival, on a clock of speed D by D times as much: the bound is
    the D-th part, but at least `PATH_MS`, which a fast clock grants to waiting requests.
    """
    bound = max(PATH_SHARE * slo.first_token_ms / metrics.whole_time_scale(rows), PATH_MS)
    return at_most("path_p90", quantile(_path(rows), PATH_QUANTILE), bound, "ms", "path_slow")


def path_over(rows: pa.Table, slo: Slo) -> Check:
    """Share of the answers whose time outside the engine alone exceeded the TTFT bound.

    A process that stands still for seconds of a long window moves no p90, but adds such answers.
    """
    path = _path(rows)
    share = float(np.mean(path > slo.first_token_ms)) if len(path) else None
    return at_most("path_over", share, PATH_OVER, "", "path_slow")


def _path(rows: pa.Table) -> Floats:
    """Real time in ms outside the engine, of the answers that report it."""
    path = metrics.path(rows)[metrics.status_in(rows, records.OK)]
    known: Floats = path[~np.isnan(path)]
    return known


def replicas(rows: pa.Table, expected: Collection[str] | None) -> Check:
    """Answers of replicas other than the expected ones."""
    seen = set(pc.unique(rows.column("replica_id").cast(pa.string()).drop_null()).to_pylist())
    strange = None if expected is None or not seen else float(len(seen.difference(expected)))
    return at_most("unexpected_replicas", strange, 0.0, "", "replica_lost")


def form(rows: pa.Table, unloaded: pa.Table | None) -> tuple[Check, ...]:
    """Share of the answers that failed for their form and not for load; no check where none failed so.

    Answers that broke off or hold an error count too where load is not the cause: the warm-up, `unloaded`,
    had more than `FORM_SHARE` of them, and the window has no clearly larger share.
    """
    total = failures.answered(rows)
    count, broken = int(failures.malformed(rows).sum()), int(failures.broken(rows).sum())
    if broken and unloaded is not None and not _grown(unloaded, broken / total, total):
        count += broken
    return (at_most("malformed", count / total, FORM_SHARE, "", "malformed_answers"),) if count else ()


def _grown(unloaded: pa.Table, share: float, total: int) -> bool:
    """True if a share of broken answers is larger than without load: one chance in 20 if they are equal."""
    before, broken = failures.answered(unloaded), int(failures.broken(unloaded).sum())
    own = broken / max(before, 1)
    if broken < LEAST_BROKEN or own <= FORM_SHARE:
        return True
    mean = (own * before + share * total) / (before + total)
    return share - own > NORMAL_95 * math.sqrt(mean * (1 - mean) * (1 / before + 1 / total))


def burst(rows: pa.Table) -> Check:
    """Share of the answers of 10 tokens or more that were held back on their way (`metrics.burst`)."""
    reads, tokens = metrics.numbers(rows, "reads"), metrics.numbers(rows, "output_tokens")
    known = metrics.status_in(rows, records.OK) & (tokens >= metrics.BURST_TOKENS) & ~np.isnan(reads)
    share = float(np.mean(metrics.burst(rows)[known])) if known.any() else None
    return at_most("burst_delivery", share, BURST_SHARE, "", "burst_delivery")


def hidden(rows: pa.Table) -> Check:
    """Share of the answers whose text does not account for the tokens that the server counts."""
    whole = metrics.status_in(rows, records.OK)
    share = float(np.mean(metrics.hidden(rows)[whole])) if whole.any() else None
    return at_most("hidden_tokens", share, HIDDEN_SHARE, "", "hidden_tokens")


def prompts(rows: pa.Table) -> Check:
    """Mean prompt tokens by the server's usage against the plan: another workload has another capacity."""
    counted = metrics.numbers(rows, "prompt_tokens")
    planned = metrics.numbers(rows, "requested_input_tokens")
    known = ~np.isnan(counted) & (planned > 0)
    error = abs(float(counted[known].sum() / planned[known].sum()) - 1) if known.any() else None
    return at_most("prompt_tokens_error", error, PROMPT_ERROR, "", "wrong_prompts")


def prefix_hits(rows: pa.Table, block_tokens: int = BLOCK_TOKENS) -> Check:
    """Difference of the prefix cache's share of the prompt tokens from the share that the plan has in common.

    Shared tokens in an incomplete last block, up to `block_tokens` - 1, may be computed anew. With sessions
    the hits depend on the routing, which is measured: then there is no bound, and no check. Those of a trace
    may be fewer, as caches forget and replicas are several, but not more.
    """
    if routing_spread.with_sessions(rows):
        return at_most("prefix_hit_error", None, HIT_ERROR, "", "wrong_prefix_hits")
    if metrics.reused(rows):
        rows = rows.filter(metrics.numbers(rows, "prompt_tokens") > 0)  # others have hits that nobody told
    hit = metrics.prefix_hit(rows)
    most, least = metrics.prefix_shared(rows), metrics.prefix_shared(rows, block_tokens - 1)
    fewer = 0.0 if metrics.reused(rows) else least - (hit or 0.0)
    error = None if hit is None else max(hit - most, fewer, 0.0)
    return at_most("prefix_hit_error", error, HIT_ERROR, "", "wrong_prefix_hits")


def queue_told(rows: pa.Table, slo: Slo) -> tuple[Check, ...]:
    """Share of the answers that tell their time in the server's queue; no check where no bound asks."""
    if slo.strictest_ms("queue") is None:
        return ()
    told = ~np.isnan(metrics.queue(rows)[metrics.status_in(rows, records.OK)])
    share = float(np.mean(told)) if len(told) else None
    return (at_least("queue_told", share, LEAST_QUEUE_TOLD, "", "queue_untold"),)


def words(rows: pa.Table) -> tuple[Check, ...]:
    """Answers whose replica or finish reason lost its own name; information, and no check without them."""
    folded = metrics.word_in(rows, "replica_id", foreign_words.OTHER) | metrics.word_in(
        rows, "finish_reason", foreign_words.OTHER
    )
    count = float(folded.sum())
    return (at_most("folded_names", count, 0.0, "requests"),) if count else ()


def achieved(rows: pa.Table) -> Check:
    """Answered of offered, by the due time; those still in flight (the backlog) count on neither side."""
    offered = rows.num_rows - int(metrics.status_in(rows, records.PENDING).sum())
    achieved = int(metrics.status_in(rows, records.OK).sum())
    return at_least("achieved", achieved / offered if offered else None, LEAST_ACHIEVED, "")
