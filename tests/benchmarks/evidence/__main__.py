"""Every public number that the engine model is judged by, beside its answer.

python -m tests.benchmarks.evidence               all that is given here, with the constants of conf/
python -m tests.benchmarks.evidence FILE.csv ...  other rows, in the formats that `reading` lists
python -m tests.benchmarks.evidence --fit         fit the constants anew, and print what conf/ then says
python -m tests.benchmarks.evidence --leave-out SOURCE FILE.csv ...   a source's rows by a fit without it

Each row has the number that was published, the prediction with its 95 % interval, the error, and whether the
number lies in the interval. The interval is that of the constants' joint posterior, of another deployment, of
what lies outside of the fit, of reading a figure, and of what the model's form misses. A table has sign, size
and interval by source; the last lines are bias and half interval, and inside N of M; median error X %.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats
from conf.io.one_line import one_line, reason
from tests.benchmarks.evidence import default_fit
from tests.benchmarks.evidence.blog import GIVEN, Requests
from tests.benchmarks.evidence.figures import Answer, Study, answers, table, verdict
from tests.benchmarks.evidence.kernels import Kernels
from tests.benchmarks.evidence.leave_out import without
from tests.benchmarks.evidence.reading import OTHERS, read

DRAWS = 96
"""Sets of constants behind an interval: its ends rest on two or three of them each."""


def rms(residuals: Floats) -> float:
    return float(np.sqrt(np.mean(residuals**2)))


def told(study: Study, answers: Sequence[Answer]) -> list[str]:
    """All rows of a study but of kernels, which have thousands; of requests the errors that fits compare."""
    if isinstance(study, Kernels):
        return [f"  {study.title:<40} {table({'': answers})[1].strip()}"]
    out = [row.line() for row in answers]
    if isinstance(study, Requests):
        seen = np.array([row.predicted for row in answers])
        for column, name in enumerate(("TTFT", "p99 gap")):
            published, predicted = study.quantiles(column, seen)
            half = slice(column * len(study.rows), (column + 1) * len(study.rows))
            one_by_one = seen[half] - np.log([row[column] for row in study.rows])
            out.append(
                f"  {study.config} {name}: rms of ln {rms(predicted - published):.3f} at quantiles, "
                f"{rms(one_by_one):.3f} request by request"
            )
    return out


def judged(studies: Sequence[Study], skipped: list[str], draws: int) -> dict[str, list[Answer]]:
    """The answers by source; prints every row as it is known, and adds to `skipped` what cannot be served."""
    by_source: dict[str, list[Answer]] = {}
    last = ""
    for study in studies:
        try:
            rows = answers(study, draws)
        except ValueError as error:
            skipped.append(f"{study.source}: {reason(error)} ({len(study.figures)} rows)")
            continue
        if study.source != last:
            print(f"\n{study.source}")
        last = study.source
        print("\n".join(told(study, rows)), flush=True)
        by_source.setdefault(study.source, []).extend(rows)
    return by_source


def main() -> int:
    """Returns 0; 2 for a file that is none of the formats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="*", help="other rows, in the formats of published/")
    parser.add_argument("--fit", action="store_true", help="fit the constants anew (minutes)")
    parser.add_argument("--leave-out", metavar="SOURCE", help="part of the name of a source, fitted without")
    parser.add_argument("--steps", type=int, default=default_fit.STEPS, help="of each walker of a fit")
    parser.add_argument("--draws", type=int, default=DRAWS, help="sets of constants behind an interval")
    options = parser.parse_args()
    try:
        studies, skipped = read(options.files or (GIVEN if options.fit else (*GIVEN, *OTHERS)))
    except (OSError, ValueError) as error:
        print(f"error: {one_line(reason(error), 300)}", file=sys.stderr)
        return 2
    if options.fit:
        return default_fit.run(studies, options.steps)
    if options.leave_out:
        return without(studies, options.leave_out, options.draws)
    found = judged(studies, skipped, options.draws)
    print("\n" + "\n".join(f"skipped: {one_line(why, 240)}" for why in skipped) if skipped else "")
    if not found:
        print("no row is of a shape that the model knows", file=sys.stderr)
        return 2
    print("\n".join(table(found)))
    print("\n".join(verdict([row for rows in found.values() for row in rows])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
