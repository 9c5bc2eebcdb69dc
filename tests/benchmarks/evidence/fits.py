"""What fits of constants share: a prior by its ends, and the lines that a card in conf/model then has."""

from collections.abc import Iterable, Sequence

import numpy as np

from analysis.stats.map_fit import Floats, ParameterFit, ParameterPrior
from conf.specs.model import Z95

Ends = tuple[float, float]


def prior_between(ends: Iterable[Ends]) -> ParameterPrior:
    """A prior of the logarithms, with 95 % of each parameter between its ends."""
    ln = np.log(np.array(list(ends)))
    sd = (ln[:, 1] - ln[:, 0]) / 2 / Z95
    return ParameterPrior(ln.mean(axis=1), sd, sd)


def constant_lines(paths: Sequence[str], fit: ParameterFit, most: Floats | float = np.inf) -> list[str]:
    """Value and interval of each constant, which end at `most`."""
    ends = np.minimum(np.exp([fit.at, fit.low, fit.high]), most).T
    return [
        f"  {path}: {{value: {value:.4g}, low: {low:.4g}, high: {high:.4g}}}"
        for path, (value, low, high) in zip(paths, ends, strict=True)
    ]


def correlation_lines(paths: Sequence[str], correlation: Floats) -> list[str]:
    """The correlations of a posterior, alike to both sides of the diagonal."""
    rows = ((correlation + correlation.T) / 2).round(3) + 0.0
    texts = (", ".join(f"{cell:g}" for cell in row) for row in rows)
    return ["  correlations:", *(f"    {path}: [{text}]" for path, text in zip(paths, texts, strict=True))]
