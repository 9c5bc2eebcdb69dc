"""Tuned kernels: FP8 GEMMs and fused BF16 mixtures, timed alone on one GPU.

python -m tests.benchmarks.evidence.kernels FILE.csv ...    fits the constants below anew

A kernel takes a latency, one more per thousand values of the inner dimension, its bytes over the bandwidth
that it reaches, and its products over the share of the peak that it reaches; memory and compute are added.
These are kernels in a loop, whose weights may stay in the last-level cache, and not layers of a running
engine: the constants of conf/ hold what an engine adds to them.
"""

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats, ParameterPrior, fit
from conf import Experiment
from tests.benchmarks.evidence.figures import Figure, Rows, Team, Values, by, loaded, rows_of

CUS = {304: "mi300x", 256: "mi355x"}
"""GPUs by their compute units; MI325X has those of MI300X."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A family of kernels: latency (us), the same per 1,000 inner values, shares of bandwidth and peak.

    With `narrow` output columns a kernel reaches half of `peak`. `ln_sd` is the scatter of one kernel's time.
    """

    latency_us: float
    inner_us: float
    bandwidth: float
    peak: float
    narrow: float
    ln_sd: float


FAMILIES: Mapping[str, Kernel] = {
    "FP8, scale per block": Kernel(3.06, 1.94, 0.519, 0.357, 0.0, 0.11),
    "FP8, scale per channel": Kernel(7.12, 0.051, 1.18, 0.592, 0.0, 0.08),
    "BF16 mixture": Kernel(21.8, 0.0, 0.821, 0.436, 273.0, 0.065),
}
"""Fitted to AITER's tables of Qwen3-235B's shapes, AMD's of Llama-2-70B's (inference_results_v5.1), and
AITER's fused mixtures; an octave of tokens counts as the root of its rows. A share of bandwidth above 1 is
the last-level cache's."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One kernel's work on a GPU: bytes, floating-point operations, and its dimensions."""

    tokens: int
    columns: int
    inner: int
    bytes: float
    flop: float


def gemm(tokens: int, columns: int, inner: int) -> Shape:
    """FP8 operands, a BF16 result."""
    size = columns * inner + tokens * inner + 2 * tokens * columns
    return Shape(tokens, columns, inner, size, 2.0 * tokens * columns * inner)


def mixture(tokens: int, hidden: int, width: int, experts: int, picked: int) -> Shape:
    """BF16 experts, of which tokens that choose independently touch a share."""
    touched = experts * (1 - (1 - picked / experts) ** tokens)
    return Shape(tokens, width, 0, touched * 3 * hidden * width * 2, 6.0 * hidden * width * picked * tokens)


def ln_us(kernel: Kernel, shape: Shape, bytes_per_s: float, flop_per_s: float) -> float:
    """ln of a kernel's microseconds."""
    memory_us = 1e6 * shape.bytes / (bytes_per_s * kernel.bandwidth)
    compute_us = 1e6 * shape.flop / (flop_per_s * kernel.peak) * (1 + kernel.narrow / shape.columns)
    return math.log(kernel.latency_us + kernel.inner_us * shape.inner / 1e3 + memory_us + compute_us)


@dataclass(frozen=True)
class Kernels:
    """The rows of one family and weight shape on a GPU."""

    source: str
    family: str
    cus: int
    title: str
    shapes: tuple[Shape, ...]
    times_us: tuple[float, ...]
    team: Team | None = None

    @property
    def experiment(self) -> Experiment:
        return loaded((f"hardware={CUS[self.cus]}",))

    @cached_property
    def figures(self) -> Sequence[Figure]:
        scatter = FAMILIES[self.family].ln_sd
        return [
            Figure(f"{self.title}, {shape.tokens} tokens", value, "us", scatter)
            for shape, value in zip(self.shapes, self.times_us, strict=True)
        ]

    @property
    def peaks(self) -> tuple[float, float]:
        """Bytes and floating-point operations per second."""
        gpu = self.experiment.hardware
        peak = gpu.fp8_flop_per_s if self.family.startswith("FP8") else gpu.bf16_flop_per_s
        assert peak is not None
        return gpu.hbm_bytes_per_s, peak

    def predict(self, values: Values) -> Floats:
        """By the family alone: constants of an engine say nothing of it."""
        return np.array([ln_us(FAMILIES[self.family], shape, *self.peaks) for shape in self.shapes])


def gemms(rows: Rows) -> list[Kernels]:
    """Rows of `source,tokens,out_features,in_features,us`."""
    items = []
    for (source, columns, inner), part in by(rows, "source", "out_features", "in_features").items():
        family = "FP8, scale per block" if "aiter" in source.lower() else "FP8, scale per channel"
        shapes = tuple(gemm(int(row["tokens"]), int(columns), int(inner)) for row in part)
        times = tuple(float(row["us"]) for row in part)
        items.append(Kernels(source, family, 304, f"GEMM {columns} x {inner}", shapes, times))
    return items


def mixtures(rows: Rows, skipped: list[str]) -> list[Kernels]:
    """Rows of `source,cus,tokens,model_dim,inter_dim,experts,topk,us`."""
    items = []
    for (source, cus, width), part in by(rows, "source", "cus", "inter_dim").items():
        if int(cus) not in CUS:
            skipped.append(f"{source}: {len(part)} rows of a GPU of {cus} compute units, which is unknown")
            continue
        shapes = tuple(
            mixture(*(int(row[name]) for name in ("tokens", "model_dim", "inter_dim", "experts", "topk")))
            for row in part
        )
        times = tuple(float(row["us"]) for row in part)
        title = f"mixture {part[0]['experts']} x {width}, {CUS[int(cus)].upper()}"
        items.append(Kernels(source, "BF16 mixture", int(cus), title, shapes, times))
    return items


def fitted(studies: Sequence[Kernels], family: str) -> tuple[Kernel, float, float]:
    """The constants of a family that meet these rows best, with the rms and the median of their errors."""
    parts = [study for study in studies if study.family == family]
    shapes = [(shape, *study.peaks) for study in parts for shape in study.shapes]
    measured = np.log(np.concatenate([study.times_us for study in parts]))
    octaves = [shape.tokens.bit_length() for shape, *_ in shapes]
    count = Counter(octaves)
    noise = 0.05 * np.array([count[octave] for octave in octaves]) ** 0.25
    start = FAMILIES[family]
    free = [start.latency_us, start.inner_us or 1e-3, start.bandwidth, start.peak, start.narrow or 1e-3]

    def predicted(at: Floats) -> Floats:
        kernel = Kernel(*np.exp(at).tolist(), 0.0)
        return np.array([ln_us(kernel, *shape) for shape in shapes])

    sd = np.where([True, start.inner_us > 0, True, True, start.narrow > 0], 1.0, 1e-3)
    found = fit(predicted, measured, ParameterPrior(np.log(free), sd, sd), noise=noise)
    off = predicted(found.at) - measured
    each = [float(np.sqrt(np.mean(off[np.array(octaves) == octave] ** 2))) for octave in count]
    rms = math.sqrt(sum(one**2 for one in each) / len(each))
    return Kernel(*np.exp(found.at).tolist(), rms), rms, float(np.median(np.abs(off)))


def main() -> int:
    """Print the constants of every family of which there are rows; returns 0."""
    studies: list[Kernels] = []
    for path in map(Path, sys.argv[1:]):
        rows = rows_of(path)
        studies += mixtures(rows, []) if "inter_dim" in rows[0] else gemms(rows)
    for family in dict.fromkeys(study.family for study in studies):
        kernel, rms, median = fitted(studies, family)
        print(f"{family}: {kernel}\n  rms {rms:.3f} over octaves of tokens, median {median:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
