"""Token counts of requests, drawn from the distributions of a workload."""

import math

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Lengths
from conf.specs.request_sizes import Images

UNIQUE_TOKENS = 8
"""Tokens that name a request, a session, a character or a cut."""
RAREST_SIGMA = 4.75
"""One normal draw in a million exceeds this many standard deviations."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def draw_lengths(
    lengths: Lengths, count: int, rng: np.random.Generator, recorded: Ints | None = None
) -> Ints:
    """`count` token counts, each at least 1; empirical ones are `recorded`.

    Uniform ones go from floor(mean * (1 - spread)) to as far above the mean, as in vLLM's benchmark.
    """
    match lengths.kind:
        case "lognormal":
            sigma = math.sqrt(math.log1p(lengths.cv**2))
            drawn = rng.lognormal(math.log(lengths.mean) - sigma**2 / 2, sigma, size=count)
            return np.maximum(1, np.rint(drawn)).astype(np.int64)
        case "uniform":
            low = _lowest(lengths)
            return np.maximum(1, rng.integers(low, 2 * lengths.mean - low, size=count, endpoint=True))
        case "mixture":
            shares = np.array(lengths.weights)
            return rng.choice(np.array(lengths.values, dtype=np.int64), size=count, p=shares / shares.sum())
        case "empirical":
            assert recorded is not None, "empirical lengths come from a trace"
            return recorded
        case "fixed":
            return np.full(count, lengths.mean, dtype=np.int64)
        case "conversation":
            raise ValueError("the lengths of conversations come from their population")


def draw_images(images: Images, count: int, rng: np.random.Generator) -> Ints | None:
    """Image tokens of each of `count` requests; None for a workload without images."""
    if not images.most:
        return None
    return rng.integers(images.least, images.most, size=count, endpoint=True) * images.tokens


def shared_with_all(input_tokens: Ints, prefix_hit: float) -> Ints:
    """Tokens that all prompts begin with, to the nearest; enough to make a prompt unique are always left."""
    unique = np.where(input_tokens > UNIQUE_TOKENS, UNIQUE_TOKENS, 1)
    shared: Ints = np.minimum(np.rint(prefix_hit * input_tokens).astype(np.int64), input_tokens - unique)
    return shared


def turns(session: Ints) -> Ints:
    """The number of earlier requests of the same session, for each request."""
    order = np.argsort(session, kind="stable")
    _, first, counts = np.unique(session[order], return_index=True, return_counts=True)
    turn = np.empty_like(order)
    turn[order] = np.arange(len(session)) - np.repeat(first, counts)
    return turn


def longest_tokens(lengths: Lengths, recorded: Ints | None = None) -> int:
    """The largest of about a million lognormal draws; of other kinds the largest possible count."""
    match lengths.kind:
        case "lognormal":
            sigma = math.sqrt(math.log1p(lengths.cv**2))
            return round(lengths.mean * math.exp(RAREST_SIGMA * sigma - sigma**2 / 2))
        case "uniform":
            return 2 * lengths.mean - _lowest(lengths)
        case "mixture":
            return max(lengths.values)
        case "empirical":
            assert recorded is not None, "empirical lengths come from a trace"
            return int(recorded.max())
        case "fixed":
            return lengths.mean
        case "conversation":
            raise ValueError("the lengths of conversations come from their population")


def _lowest(lengths: Lengths) -> int:
    return math.floor(lengths.mean * (1 - lengths.spread))


def cut_tokens(history_tokens: Ints | int, room_tokens: Ints | int, step_tokens: int) -> Ints:
    """The number of oldest tokens to remove from each history so that the rest fits into its room.

    It is a whole number of steps, so the cut stays until the history has grown by a step, and with it the
    cached beginning of the prompt (as in Character.ai's prompt-poet). A step is at most three quarters of the
    room (our choice).
    """
    step = np.maximum(np.minimum(step_tokens, 3 * np.asarray(room_tokens) // 4), 1)
    excess = np.maximum(np.asarray(history_tokens) - room_tokens, 0)
    cut: Ints = -(-excess // step) * step
    return cut
