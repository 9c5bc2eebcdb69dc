"""What the MI325X paper's tables say and what was asked of its machines to get them; knows no fit.

Half a table is five or six rows, and a row's throughput and p99 say nearly the same. What is free is
therefore what the rows tell apart: the fixed time of a step (`layer_us`), its time per sequence
(`gemm_decode`), and for experts one constant of how their reads grow in between.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

BURST_MOST, WAVES, CLOSED_MOST = 450, 3, 300
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


@dataclass(frozen=True, slots=True)
class Subject:
    """One model of the paper and what its clients asked; lengths in tokens, limits by table or table/C.

    `whole` is the share of requests that run to their limit; the others share what the row's own mean leaves,
    and end at once where the row states none. `burst_mean` of 0: the row's, or all to the limit. `goal_rms`
    is also what the engine model is taken to err by in each figure: a few rows met by luck prove no more.
    """

    name: str
    words: tuple[str, ...]
    prompt: int
    limits: Mapping[str, int]
    goal_rms: float
    free: Mapping[str, Ends]
    whole: float = 1.0
    burst_mean: float = 0.0
    left_out: Mapping[tuple[str, int], str] = field(default_factory=dict)


_ONCE = "its answers have 100 tokens, the others' 199"
_AGAIN = "is the row of table 23 again"
_MLA = "engine.block_size=1"
SUBJECTS = (
    Subject(
        "Llama-3.1-405B",
        ("model=llama31_405b_fp8", "layout=dp1_tp8"),
        329,
        {"15": 200, "22": 100},
        0.025,
        FREE,
        burst_mean=98.5,
    ),
    Subject(
        "Qwen3-VL-235B",
        ("model=qwen3_vl_235b_bf16", "layout=dp1_tp8"),
        1141,
        {"14": 200, "23": 200},
        0.04,
        ALIKE,
        left_out={
            ("23", 150): "8.5 s between 6.3 s at 100 and 9.0 s at 200: a first burst's image fetch or JIT"
        },
    ),
    Subject(
        "DeepSeek V3.2",
        ("model=deepseek_v32_fp8", "layout=dp1_tp8", _MLA),
        290,
        {"16": 200, "22": 100},
        0.09,
        ALIKE,
        whole=0.25,
        burst_mean=26.5,
    ),
    Subject(
        "Kimi-K2.5",
        ("model=kimi_k25_int4", "layout=dp1_tp4", _MLA),
        1483,
        {"17": 199, "23": 199, "17/1": 100},
        0.09,
        DEQUANTISED,
        left_out={("17", 1): _ONCE, ("17", 500): _AGAIN},
    ),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the tables; `total` and `output` tokens/s, `p99_s` of the whole answer."""

    table: str
    concurrency: int
    burst: bool
    total_tok_s: float
    output_tok_s: float | None
    p99_s: float

    @property
    def requests(self) -> int:
        c = self.concurrency
        return min(c, BURST_MOST) if self.burst else min(WAVES * c, CLOSED_MOST)

    @property
    def in_flight(self) -> int:
        return min(self.concurrency, self.requests)


def read(path: Path) -> dict[str, list[Row]]:
    """The rows of each model, table by table as they stand."""
    rows: dict[str, list[Row]] = {}
    with path.open() as file:
        for line in csv.DictReader(line for line in file if not line.startswith("#")):
            output = float(line["output_tok_s"]) if line["output_tok_s"] else None
            row = Row(
                line["table"],
                int(line["concurrency"]),
                line["phase"] == "saturation",
                float(line["total_tok_s"]),
                output,
                float(line["p99_latency_s"]),
            )
            rows.setdefault(line["model"], []).append(row)
    return rows


def outputs(subject: Subject, row: Row) -> np.ndarray:
    """Tokens that each request of a row puts out, those to the limit spread evenly over the others."""
    limits, count = subject.limits, row.requests
    limit = limits.get(f"{row.table}/{row.concurrency}", limits[row.table])
    mean = subject.burst_mean if row.burst and subject.burst_mean else float(limit)
    if row.output_tok_s is not None:
        mean = min(limit, subject.prompt * row.output_tok_s / (row.total_tok_s - row.output_tok_s))
    total = round(mean * count)
    whole = min(round(subject.whole * count), (total - 2 * count) // (limit - 2))
    asked = np.full(count, limit)
    ends_early = np.ones(count, bool)
    ends_early[(np.arange(whole) + 1) * count // max(whole, 1) - 1] = False
    early = count - whole
    if early:
        left = total - whole * limit
        asked[ends_early] = left // early + (np.arange(early) < left % early)
    return asked


def kept(subject: Subject, rows: Sequence[Row]) -> list[Row]:
    """The rows that are fitted."""
    return [row for row in rows if (row.table, row.concurrency) not in subject.left_out]


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Every second row of each table as it stands, and the others."""
    places: Counter[str] = Counter()
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in rows:
        parts[places[row.table] % 2].append(row)
        places[row.table] += 1
    return parts
