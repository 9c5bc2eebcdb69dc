"""How often the quality gate is wrong, and how many prompts it needs, on simulated answers.

python -m tests.benchmarks.quality_gate                     1000 replications of each row, some minutes
python -m tests.benchmarks.quality_gate --replications 100  a first look

The prompts of a row are drawn from a pool of simulated ones whose means are known exactly, and brought to the
row's excess by the size of the candidate's own divergence. Nothing here depends on the machine.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.quality.answer_file import MOST_NATS
from analysis.quality.gate import GateEnds
from conf.specs.search import Quality

Floats = NDArray[np.float64]

TOKENS = 32
POOL = 60_000
NOISE_NATS = 0.003
"""Mean divergence of a repeat under load, per token: 0.012 nats of Kullback-Leibler, a third of what an FP8
cache was seen to cost."""
SCATTER = 1.6
"""sd of ln of a token's divergence: most tokens are certain, and do not diverge at all."""
ALIKE = 0.3
"""Share of that variance which the tokens of a prompt have in common."""
FLIPS = 0.5
"""Chance of another token per root of the divergence: 2.7 % at 0.003 nats."""
MOST_PROMPTS = 6000
"""A replication without a verdict until then counts as one of so many prompts."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Prompts by their two figures, the candidate's less the repeat's; of equal length."""

    nats: Floats
    broken: Floats


@dataclass(frozen=True, slots=True)
class Row:
    """A true state: what the candidate has beyond the repeat, in the mean and in the share of broken prompts.

    Without `excess_nats` the mean is what the broken prompts make it. `noise_nats` and `noise_broken` are
    those of the repeat, and of the candidate too.
    """

    title: str
    excess_nats: float | None = 0.0
    broken: float = 0.0
    noise_nats: float = NOISE_NATS
    noise_broken: float = 0.0


ROWS = (
    Row("equal"),
    Row("equal, ten times the noise", noise_nats=10 * NOISE_NATS),
    Row("equal, noise breaks 0.2 %", noise_broken=0.002),
    Row("equal, noise breaks 2 %", noise_broken=0.02),
    Row("mean 0.003", 0.003),
    Row("mean at its margin", 0.01),
    Row("the same, ten times the noise", 0.01, noise_nats=10 * NOISE_NATS),
    Row("mean 0.017", 0.017),
    Row("mean 0.031", 0.031),
    Row("mean 0.13", 0.13),
    Row("broken 0.5 %", None, 0.005),
    Row("broken at its margin", None, 0.01),
    Row("the same, noise breaks 2 %", None, 0.01, noise_broken=0.02),
    Row("broken 2 %", None, 0.02),
    Row("broken 5 %", None, 0.05),
    Row("both at their margins", 0.01, 0.01),
)


def pool(row: Row, rule: Quality, seed: int) -> Pool:
    """Prompts of a row. The candidate's noise is that of the repeat, and its own divergence comes on top."""
    rng = np.random.default_rng(seed)
    repeat, noise, own = (_shape(rng) for _ in range(3))
    again_flips, flips = rng.random((2, POOL, TOKENS))
    again_hits = _hits(rng, row.noise_broken, rule)
    hits = _hits(rng, row.noise_broken + row.broken, rule)
    again = _mean(row.noise_nats * repeat, again_flips, again_hits, rule)

    def excess(size: float) -> Floats:
        return _mean(row.noise_nats * noise + size * own, flips, hits, rule) - again

    if row.excess_nats is None:
        nats = excess(0.0)
    else:
        size = _size(lambda size: float(excess(size).mean()), row.excess_nats)
        nats = excess(size)
        nats += row.excess_nats - nats.mean()
    return Pool(np.clip(nats, -MOST_NATS, MOST_NATS), (hits > 0) - (again_hits > 0).astype(np.float64))


def _size(excess: Callable[[float], float], wanted: float) -> float:
    """Size of the candidate's own divergence that makes the mean as wanted; 0 where it is more already."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < wanted else (low, middle)
    return low


def _hits(rng: np.random.Generator, share: float, rule: Quality) -> Floats:
    """Divergence of the broken position of each prompt, 0 for prompts that are not broken."""
    hit = rng.uniform(rule.broken_divergence, MOST_NATS, POOL)
    return np.where(rng.permutation(POOL) < round(share * POOL), hit, 0.0)


def _shape(rng: np.random.Generator) -> Floats:
    """Divergence of each token over its mean: lognormal, the tokens of a prompt alike."""
    common = rng.standard_normal((POOL, 1))
    own = rng.standard_normal((POOL, TOKENS))
    ln = SCATTER * (np.sqrt(ALIKE) * common + np.sqrt(1 - ALIKE) * own)
    return np.asarray(np.exp(ln - SCATTER**2 / 2))


def _mean(nats: Floats, chance: Floats, hits: Floats, rule: Quality) -> Floats:
    """Mean divergence up to the first other token, which is where a broken prompt breaks."""
    nats = np.minimum(nats, rule.broken_divergence)
    flips = chance < FLIPS * np.sqrt(nats)
    seen = np.where(flips.any(axis=1), flips.argmax(axis=1) + 1, TOKENS)
    total = np.cumsum(nats, axis=1)
    last = np.arange(len(nats)), seen - 1
    return np.asarray((total[last] + np.where(hits > 0, hits - nats[last], 0.0)) / seen)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of every replication the verdict, 1 same, -1 degraded, 0 none, and after how many prompts."""

    verdict: NDArray[np.int64]
    prompts: NDArray[np.int64]

    def share(self, verdict: int, prompts: int = MOST_PROMPTS) -> float:
        """Share of replications with this verdict within so many prompts."""
        return float(((self.verdict == verdict) & (self.prompts <= prompts)).mean())


def simulate(prompts: Pool, rule: Quality, replications: int, seed: int) -> Outcome:
    """Gates side by side, each on its own prompts."""
    rng = np.random.default_rng([seed, 1])
    ends = GateEnds(rule, (replications,))
    verdict, count = np.zeros(replications, np.int64), np.full(replications, MOST_PROMPTS)
    for number in range(1, MOST_PROMPTS + 1):
        drawn = rng.integers(0, len(prompts.nats), replications)
        ends.feed(prompts.nats[drawn], prompts.broken[drawn])
        ends.unanswered.feed(np.zeros(replications))
        result = np.where(ends.degraded, -1, np.where(ends.same, 1, 0))
        new = (verdict == 0) & (result != 0)
        verdict[new], count[new] = result[new], number
        if verdict.all():
            break
    return Outcome(verdict, count)


def table(rows: tuple[Row, ...], rule: Quality, replications: int, seed: int) -> Iterator[str]:
    yield (
        "| truth | excess, nats | sd | broken beyond the repeat | same | degraded | "
        f"of them in {rule.prompts}: same | degraded | prompts, median | p90 | wrong |"
    )
    yield f"|---{'|--:' * 10}|"
    for row in rows:
        prompts = pool(row, rule, seed)
        result = simulate(prompts, rule, replications, seed)
        yield _line(row, prompts, result, rule)


def _line(row: Row, prompts: Pool, outcome: Outcome, rule: Quality) -> str:
    nats, broken = float(prompts.nats.mean()), float(prompts.broken.mean())
    is_worse = nats > rule.margin_nats * 1.0001 or broken > rule.margin_broken * 1.0001
    is_same = nats < rule.margin_nats * 0.9999 and broken < rule.margin_broken * 0.9999
    wrong = [] if is_same else [f"{outcome.share(1):.1%} same"]
    wrong += [] if is_worse else [f"{outcome.share(-1):.1%} degraded"]
    median, late = np.quantile(outcome.prompts, [0.5, 0.9])
    return (
        f"| {row.title} | {nats:.5f} | {prompts.nats.std():.3f} | {broken:.2%} | {outcome.share(1):.1%} | "
        f"{outcome.share(-1):.1%} | {outcome.share(1, rule.prompts):.1%} | "
        f"{outcome.share(-1, rule.prompts):.1%} | "
        f"{median:.0f} | {late:.0f} | {', '.join(wrong)} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began_s = time.monotonic()
    print("load", *(f"{load:.1f}" for load in os.getloadavg()), f"on {os.cpu_count()} cores")
    for line in table(ROWS, Quality(), options.replications, options.seed):
        print(line, flush=True)
    print(f"{time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
