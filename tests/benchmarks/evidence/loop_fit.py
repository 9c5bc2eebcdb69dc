"""Constants of a model's card that meet published closed loops, by damped Gauss-Newton.

python -m tests.benchmarks.evidence.loop_fit     fits DeepSeek-R1's card, and prints what conf/ then says

Of each load and metric the mean over the dates of one release is fitted. Quantiles above the median are
left out: a closed loop's slowest first tokens are those of its first requests, of a cold service.
"""

import re
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from analysis.stats.map_fit import Floats, ParameterFit, fit
from tests.benchmarks.evidence.blog import FOLDER
from tests.benchmarks.evidence.fits import constant_lines, correlation_lines, prior_between
from tests.benchmarks.evidence.loops import Loop
from tests.benchmarks.evidence.reading import read

ROWS = FOLDER / "inferencex_deepseek_r1_fp8.csv"
RELEASE = re.compile(r" 2025-12-")
"""The dates of one release, within 2 % of each other. Steps of later ones last .68 to 1.4 times as long."""
STEP = "model.step_time."
FREE: Mapping[str, tuple[float, float]] = {
    STEP + "layer_us": (60.0, 600.0),
    STEP + "gemm_decode": (0.02, 0.5),
    STEP + "gemm_prefill": (0.1, 0.6),
    STEP + "prefill_layer_us": (20.0, 1500.0),
    STEP + "expert_read": (0.3, 1.0),
    STEP + "front_end_latency_ms": (5.0, 80.0),
}
"""95 % of what is thought possible before these rows."""
FORM = 0.05
"""sd (ln) of what the form misses of a figure (our choice)."""


class Measured:
    """The mean of each metric of each load, and the model's answers in the same order."""

    def __init__(self, studies: Sequence[Loop]) -> None:
        self._parts: list[tuple[Loop, dict[str, list[int]]]] = []
        means = []
        for study in studies:
            places: dict[str, list[int]] = {}
            for index, (label, metric, _, _) in enumerate(study.known):
                if RELEASE.search(label) and not metric.startswith("p99"):
                    places.setdefault(metric, []).append(index)
            for rows in places.values():
                means.append(np.mean([study.figures[index].scaled for index in rows]))
            self._parts.append((study, places))
        self.means = np.array(means)

    @property
    def labels(self) -> list[str]:
        return [
            re.sub(r" 20\d\d-.*", "", study.figures[rows[0]].label)
            for study, places in self._parts
            for rows in places.values()
        ]

    def predict(self, at: Floats) -> Floats:
        values = {path: min(1.0, value) if "expert" in path else value for path, value in at_values(at)}
        out = []
        for study, places in self._parts:
            if places:
                seen = study.predict(values)
                out += [seen[rows[0]] for rows in places.values()]
        return np.array(out)


def at_values(at: Floats) -> list[tuple[str, float]]:
    return list(zip(FREE, np.exp(at).tolist(), strict=True))


def fitted(measured: Measured) -> ParameterFit:
    noise = np.full(len(measured.means), FORM)
    return fit(measured.predict, measured.means, prior_between(FREE.values()), noise=noise)


def main() -> int:
    """Fit, and print constants, correlations and every figure; returns 0."""
    studies = [study for study in read([ROWS])[0] if isinstance(study, Loop)]
    measured = Measured(studies)
    result = fitted(measured)
    paths = tuple(FREE)
    print("\n".join([*constant_lines(paths, result), *correlation_lines(paths, result.correlation)]))
    print(f"rms {100 * result.rms:.1f} % of {len(measured.means)} figures")
    for label, mean, off in zip(measured.labels, measured.means, result.residuals, strict=True):
        print(f"  {label:<48} {np.exp(mean):8.4g}  {100 * np.expm1(off):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
