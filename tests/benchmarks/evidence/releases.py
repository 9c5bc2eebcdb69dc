"""How fast engine releases are beside the one that a card was fitted to, by their published rows.

python -m tests.benchmarks.evidence.releases     fits them, prints what conf/model then says, and judges it

A release multiplies a step's fixed time by `launch` and then the whole step by `step`. Both are near 1 by
their prior, whose sds are those of the releases themselves (`conf.kernels.RELEASE_LN_SD`). The wait for a
cold service in InferenceX's closed loops is fitted beside them. Errors (ln) of each release's rows are those
by the card alone, by the fit, by fits without the load that is predicted, and by the other releases of the
card, as `predict` has it for a release that nobody measured.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.stats.map_fit import Floats
from conf.kernels import RELEASE_LN_SD, WITHOUT_AITER, minor, other_release
from conf.specs.experiment import SimulatedEngine
from conf.specs.model import Z95
from tests.benchmarks.evidence.figures import Study
from tests.benchmarks.evidence.loops import COLD, LATER_COLD_S, Loop
from tests.benchmarks.evidence.reading import OTHERS, read

KEYS = tuple(f"engine.kernel_ratio.{name}" for name in RELEASE_LN_SD)
SD = np.array([*RELEASE_LN_SD.values(), 0.7])
"""sds of the prior: `launch`, `step`, and the wait for a cold service (our choice)."""
FORM, WITNESSES = 0.05, 2
"""sd (ln) of what the form misses of a figure, at least; the figures of one load say as much as so many
independent ones (our choices)."""
ROUNDS, HALF = 3, 0.05
"""Gauss-Newton steps, and half the difference of a numeric derivative."""
UNNAMED = "unnamed"


@dataclass(frozen=True, slots=True)
class Release:
    """The rows of one release with one card, linear around their fit `at`: ln of the three unknowns.

    `before` are errors by the card alone, `errors` those of the fit with their `slopes`; `noise` is the sd of
    reading a row, and `load` the number of its load.
    """

    name: str
    at: Floats
    before: Floats
    errors: Floats
    slopes: Floats
    noise: Floats
    load: NDArray[np.int64]

    def fit(self, without: int = -1) -> tuple[Floats, Floats]:
        """The unknowns by all loads but one, and their covariance."""
        rows = self.load != without
        slopes, base, noise = self.slopes[rows], (self.errors - self.slopes @ self.at)[rows], self.noise[rows]
        of_load = np.bincount(self.load)[self.load][rows]
        at, covariance, form = np.zeros(3), np.diag(SD**2), FORM
        for _ in range(ROUNDS):
            sd = np.hypot(noise, form) * np.sqrt(np.maximum(1, of_load / WITNESSES))
            weighted = slopes / sd[:, None]
            covariance = np.linalg.inv(weighted.T @ weighted + np.diag(SD**-2.0))
            at = -covariance @ weighted.T @ (base / sd)
            form = math.sqrt(max(FORM**2, float(np.mean((base + slopes @ at) ** 2 - noise**2))))
        return at, covariance

    def errors_at(self, at: Floats) -> Floats:
        moved: Floats = self.errors + self.slopes @ (at - self.at)
        return moved

    def left_out(self) -> Floats:
        """Errors of each load by the fit to the others."""
        parts = [self.errors_at(self.fit(load)[0])[self.load == load] for load in np.unique(self.load)]
        return np.concatenate(parts)


def fitted(name: str, studies: Sequence[Study]) -> Release:
    """The release by the studies of its loads."""
    figures = [figure for study in studies for figure in study.figures]
    published = np.array([figure.scaled for figure in figures])
    noise = np.array([figure.reading if figure.reading == COLD else 0.0 for figure in figures])
    load = np.repeat(np.arange(len(studies)), [len(study.figures) for study in studies])
    at, before = np.zeros(3), predicted(studies, np.zeros(3)) - published
    release = Release(name, at, before, before, np.zeros((len(before), 3)), noise, load)
    for _ in range(ROUNDS):
        ends = [[predicted(studies, at + side * step) for side in (1, -1)] for step in HALF * np.eye(3)]
        slopes = np.column_stack([(high - low) / (2 * HALF) for high, low in ends])
        at, _ = replace(release, slopes=slopes).fit()
        release = replace(release, at=at, errors=predicted(studies, at) - published, slopes=slopes)
    return release


def predicted(studies: Sequence[Study], at: Floats) -> Floats:
    """Figures of all studies at ln of `launch`, `step` and the wait over `LATER_COLD_S`."""
    *times, cold = np.exp(at).tolist()
    values = dict(zip(KEYS, times, strict=True))
    seen = []
    for study in studies:
        if isinstance(study, Loop) and study.load.cold_s:
            study = replace(study, load=replace(study.load, cold_s=cold * LATER_COLD_S))
        seen.append(study.predict(values))
    return np.concatenate(seen)


def by_card(studies: Iterable[Study]) -> dict[str, list[Release]]:
    """The releases of each card whose names are known, without those of its fit."""
    parts: dict[str, dict[str, list[Study]]] = {}
    for study in studies:
        engine, model = study.experiment.engine, study.experiment.model
        name = other_release(engine, model) if isinstance(engine, SimulatedEngine) else ""
        if name and UNNAMED not in name:
            short = minor(name) if name.startswith("vLLM ") else name
            parts.setdefault(model.name, {}).setdefault(short, []).append(study)
    return {card: [fitted(*release) for release in own.items()] for card, own in parts.items()}


def by_others(release: Release, releases: Sequence[Release]) -> Floats:
    """Errors by the mean of the other releases with the same kernels, and of that of the fit."""
    no_aiter = release.name.endswith(WITHOUT_AITER)
    others = [it.at for it in releases if it is not release and it.name.endswith(WITHOUT_AITER) == no_aiter]
    at = np.sum([np.zeros(3), *others], axis=0) / (len(others) + 1)
    return release.errors_at(np.array([*at[:2], release.at[2]]))


def lines(release: Release) -> list[str]:
    """The release as its card has it."""
    at, covariance = release.fit()
    half = Z95 * np.sqrt(np.diag(covariance))
    ends = np.exp([at - half, at, at + half]).T
    times = ", ".join(
        f"{name}: [{', '.join(f'{end:.3g}' for end in own)}]"
        for name, own in zip(RELEASE_LN_SD, ends[:2], strict=True)
    )
    cold = f"  # cold service {LATER_COLD_S * ends[2][1]:.2g} s" if release.slopes[:, 2].any() else ""
    return [f"    {release.name}: {{{times}}}{cold}"]


def judged(kinds: Mapping[str, Floats]) -> str:
    """Bias and rms of errors by kind (ln, %)."""
    parts = [
        f"{kind} {100 * float(errors.mean()):+.1f} / {100 * math.sqrt(float(np.mean(errors**2))):.1f}"
        for kind, errors in kinds.items()
    ]
    return ", ".join(parts)


def main() -> int:
    """Fit, and print; returns 0."""
    everywhere: dict[str, list[Floats]] = {}
    spread = []
    for card, releases in by_card(read(OTHERS)[0]).items():
        print(f"\n{card}: bias / rms of ln, %\n  releases:")
        for release in releases:
            kinds = {
                "card": release.before,
                "fit": release.errors,
                "left out": release.left_out(),
                "others": by_others(release, releases),
            }
            spread.append(release.at[:2])
            for kind, errors in kinds.items():
                everywhere.setdefault(kind, []).append(errors)
            print("\n".join(lines(release)))
            print(f"      {len(release.load)} rows of {len(np.unique(release.load))} loads: {judged(kinds)}")
    print("\nall rows:", judged({kind: np.concatenate(errors) for kind, errors in everywhere.items()}))
    print("rms over releases of ln launch and step:", np.sqrt(np.mean(np.square(spread), axis=0)).round(3))
    return 0


if __name__ == "__main__":
    sys.exit(main())
