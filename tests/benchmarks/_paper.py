"""What is fitted to the MI325X paper's tables, between which ends, and how well it ought to fit.

Half a table is five or six rows, and a row's throughput and p99 say nearly the same. What is free is
therefore what the rows tell apart: the fixed time of a step (`layer_us`), its time per sequence
(`gemm_decode`), and for experts one constant of how their reads grow in between.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadgen.studies.published_tables import PublishedRow

LAYER, GEMM = "model.step_time.layer_us", "model.step_time.gemm_decode"
READ, SPREAD = "model.step_time.expert_read", "model.step_time.expert_spread"
FRONT_END = "model.step_time.front_end_ms"
Ends = tuple[float, float]
FREE: Mapping[str, Ends] = {LAYER: (40.0, 2000.0), GEMM: (0.01, 0.6)}
"""What is fitted for every model, with 95 % of what is thought possible before the tables are read: a
layer's two fused all-reduces take 42 us, launches without a graph orders more; AMD reaches 58 % of the FP8
and 64 % of the BF16 peak in large products, and decode has few rows."""
ALIKE: Mapping[str, Ends] = {**FREE, SPREAD: (0.03, 1.0)}
"""Experts behind AITER's kernels stream their weights as other layers do, so that only how many are touched
is open: at most what tokens touch that choose independently (1), at least what some 3 in 100 do."""
DEQUANTISED: Mapping[str, Ends] = {**FREE, READ: (0.04, 0.10)}
"""Kimi's INT4 experts are read by Triton kernels at 4 to 10 % of the HBM's peak (the engine model, section
4.1, which has it from these tables). Its rows show no alike choices: they ask for more experts than even
independent tokens touch, which is refused."""
HELD: Mapping[str, float] = {FRONT_END: 2.5, READ: 0.6, SPREAD: 1.0}
"""Where not free: section 5 of the engine model. One server answers for all models, so one front end. All
else stands as shipped in conf/, where section 4.1 holds it. But its .15 for Kimi's KV reads is .50: with one
context length in all rows it cannot be told from `gemm_decode`, which takes the difference."""


STEP, HOST = "model.step_time.step_ms", "model.step_time.host_per_sequence_us"
OPEN: Mapping[str, Ends] = {STEP: (1.0, 4.0), HOST: (5.0, 20.0), FRONT_END: (1.0, 6.25), READ: (0.36, 1.0)}
"""What the fit holds, in the middle of what is thought possible: the joint posterior is of these too, for a
draw of one alone would change what the tables fix. Host: what it costs more, `gemm_decode` has already."""
OPEN_HARDWARE = ("hardware.efficiency.hbm", "hardware.efficiency.kv_read", "hardware.efficiency.link")
"""The same of the accelerator, with the intervals that stand in conf/hardware."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """What is free of one model. `goal_rms` is also what the engine model is taken to err by in each figure:
    a few rows met by luck prove no more.
    """

    free: Mapping[str, Ends]
    goal_rms: float


FITTED: Mapping[str, Fitted] = {
    "Llama-3.1-405B": Fitted(FREE, 0.025),
    "Qwen3-VL-235B": Fitted(ALIKE, 0.04),
    "DeepSeek V3.2": Fitted(ALIKE, 0.09),
    "Kimi-K2.5": Fitted(DEQUANTISED, 0.09),
}
"""By the paper's name of the model."""


def halves(rows: Sequence[PublishedRow]) -> tuple[list[PublishedRow], list[PublishedRow]]:
    """Every second row of each table as it stands, and the others."""
    places: Counter[str] = Counter()
    parts: tuple[list[PublishedRow], list[PublishedRow]] = ([], [])
    for row in rows:
        parts[places[row.table] % 2].append(row)
        places[row.table] += 1
    return parts


INSIDE = "model.step_time."
Interval = tuple[float, float, float]
"""Low, value and high."""


def with_constants(text: str, fitted: Mapping[str, Interval]) -> str:
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
