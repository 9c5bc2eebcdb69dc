"""Writes fitted constants and their joint posterior into the text of a model's file."""

import re
from collections.abc import Mapping, Sequence

INSIDE = "model.step_time."
Ends = tuple[float, float, float]
"""Low, value and high."""


def with_constants(text: str, fitted: Mapping[str, Ends]) -> str:
    """The text with other numbers of the constants of the step time; units, sources and the rest stay.

    Raises ValueError for a constant that has no line with an interval.
    """
    for path, (low, value, high) in fitted.items():
        name = path.removeprefix(INSIDE)
        number = r"[0-9.e+-]+"
        line = re.compile(
            rf"^(  {name}: {{value: ){number}(, unit: [^,]*, low: ){number}(, high: ){number},", re.MULTILINE
        )
        text, found = line.subn(rf"\g<1>{_digits(value)}\g<2>{_digits(low)}\g<3>{_digits(high)},", text)
        if found != 1:
            raise ValueError(f"{name} has no line with value, unit, low and high")
    return text


def _digits(value: float) -> str:
    """Three digits, without an exponent for large numbers."""
    return f"{float(f'{value:.3g}'):g}"


def with_posterior(
    text: str, rests_on: str, hardware: str, names: Sequence[str], rows: Sequence[Sequence[float]]
) -> str:
    """The text with its last block, `posterior`, replaced or added."""
    kept = text.partition("posterior:\n")[0].rstrip("\n")
    cells = [
        ["1" if at == place else f"{round(cell, 3) + 0.0:g}" for at, cell in enumerate(row)]
        for place, row in enumerate(rows)
    ]
    lines = [f"    {name}: [{', '.join(row)}]" for name, row in zip(names, cells, strict=True)]
    block = [
        "posterior:",
        f'  rests_on: "{rests_on}"',
        f"  hardware: [{hardware}]",
        "  correlations:",
        *lines,
    ]
    return "\n".join([kept, *block]) + "\n"
