"""Every public number of Qwen3-235B-A22B on MI300X and MI325X beside the engine model's answer.

python -m tests.benchmarks.evidence               all that is given here, with the constants of conf/
python -m tests.benchmarks.evidence FILE.csv ...  other rows of the same formats
python -m tests.benchmarks.evidence --fit         fit the constants anew, and print what conf/ then says

Each row has the number that was published, the prediction with its 95 % interval, the error, and whether the
number lies in the interval. The interval is that of the constants' joint posterior, of another deployment, of
reading a figure, and of what the model's form misses. The last line counts: inside N of M; median error X %.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from analysis.stats.map_fit import Floats
from conf.io.one_line import one_line, reason
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE, drawn
from tests.benchmarks import _default_fit as default_fit
from tests.benchmarks._published import Figure, Requests, Study, read

DRAWS = 96
"""Sets of constants behind an interval: its ends rest on two or three of them each."""
NORMAL = NormalDist()
Z95 = NORMAL.inv_cdf(0.975)
FORM = {"s": 0.04, "tok/s": 0.03, "share": 0.03, "ratio": 0.03, "GB": 0.0}
"""sd of what the form of the model misses, by unit (ln, or of a share): the residuals' own scatter."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model says of one figure; all scaled as `Figure.scaled`."""

    figure: Figure
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        return self.low <= self.figure.scaled <= self.high

    @property
    def error(self) -> float:
        """Predicted over published less 1; of a share the difference."""
        away = self.predicted - self.figure.scaled
        return away if self.figure.is_share else math.expm1(away)

    def line(self) -> str:
        """Published, predicted with its interval, error."""
        figure = self.figure
        value, predicted, low, high = (
            100 * each if figure.is_share else each
            for each in (figure.value, *map(figure.unscaled, (self.predicted, self.low, self.high)))
        )
        unit = "%" if figure.is_share else figure.unit
        where = "inside" if self.inside else "OUTSIDE"
        return (
            f"  {figure.label:<40} {value:>8.4g} {unit:<5} {predicted:>8.4g} [{low:.4g}, {high:.4g}]  "
            f"{figure.error(self.predicted):>12}  {where}"
        )


def answers(study: Study, draws: int) -> list[Answer]:
    """Every figure of a study by the constants as they are, and by `draws` of their posterior.

    The team's own pace is known of teams that were fitted, and so are their layouts.
    """
    team = study.team
    centre = study.predict({DEPLOYMENT_SCALE: team.scale, LAYOUT_SCALE: 1.0})
    normals = np.random.default_rng(0).standard_normal((draws, 2))
    paces = np.exp([math.log(team.scale), 0.0] + normals * [team.ln_sd, team.layout_ln_sd]).tolist()
    sets = zip(drawn(study.experiment, draws), paces, strict=True)
    seen = np.array(
        [study.predict({**values, DEPLOYMENT_SCALE: own, LAYOUT_SCALE: of}) for values, (own, of) in sets]
    )
    low, high = (np.quantile(seen, share, axis=0) for share in (0.025, 0.975))
    rows = zip(study.figures, centre, np.minimum(low, centre), np.maximum(high, centre), strict=True)
    return [_widened(*row) for row in rows]


def _widened(figure: Figure, centre: float, low: float, high: float) -> Answer:
    beside = Z95 * math.hypot(FORM[figure.unit], figure.reading)
    return Answer(
        figure,
        float(centre),
        centre - math.hypot(centre - low, beside),
        centre + math.hypot(high - centre, beside),
    )


def rms(residuals: Floats) -> float:
    return math.sqrt(float(np.mean(residuals**2)))


def told(study: Study, found: Sequence[Answer]) -> list[str]:
    """All rows of a study, and of requests the errors that are compared between fits."""
    out = [f"\n{study.source}", *(row.line() for row in found)]
    if isinstance(study, Requests):
        seen = np.array([row.predicted for row in found])
        for column, name in enumerate(("TTFT", "p99 gap")):
            published, predicted = study.quantiles(column, seen)
            half = slice(column * len(study.rows), (column + 1) * len(study.rows))
            one_by_one = seen[half] - np.log([row[column] for row in study.rows])
            out.append(
                f"  {study.config} {name}: rms of ln {rms(predicted - published):.3f} at quantiles, "
                f"{rms(one_by_one):.3f} request by request"
            )
    return out


def verdict(found: Sequence[Answer]) -> list[str]:
    """How wide the intervals are beside the residuals, and the count of rows that lie in them."""
    residuals = np.array([row.predicted - row.figure.scaled for row in found])
    half = np.array([(row.high - row.low) / 2 for row in found])
    scatter = float(np.median(np.abs(residuals))) / NORMAL.inv_cdf(0.75)
    inside = sum(row.inside for row in found)
    error = 100 * float(np.median([abs(row.error) for row in found]))
    wide = float(np.median(half)) / (Z95 * scatter) if scatter else math.inf
    return [
        f"half an interval is {100 * float(np.median(half)):.0f} % in the median, {wide:.1f} times what 95 % "
        f"of the residuals' own scatter would be (sd {100 * scatter:.1f} %)",
        f"inside {inside} of {len(found)}; median error {error:.1f} %",
    ]


def main() -> int:
    """Returns 0; 2 for a file that is none of the formats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", help="other rows, in the formats of published/")
    parser.add_argument("--fit", action="store_true", help="fit the constants anew (minutes)")
    parser.add_argument("--steps", type=int, default=default_fit.STEPS, help="of each walker of a fit")
    parser.add_argument("--draws", type=int, default=DRAWS, help="sets of constants behind an interval")
    asked = parser.parse_args()
    try:
        studies, skipped = read(asked.files) if asked.files else read()
    except (OSError, ValueError) as error:
        print(f"error: {one_line(reason(error), 300)}", file=sys.stderr)
        return 2
    if asked.fit:
        return default_fit.run(studies, asked.steps)
    found: list[Answer] = []
    for study in studies:
        of_study = answers(study, asked.draws)
        print("\n".join(told(study, of_study)), flush=True)
        found += of_study
    print("\n" + "\n".join(f"skipped: {one_line(why, 200)}" for why in skipped) if skipped else "")
    if not found:
        print("no row is of a shape that the model knows", file=sys.stderr)
        return 2
    print("\n".join(verdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
