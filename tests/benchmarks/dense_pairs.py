"""The card of Llama-2-70B, and the pace of MI325X over MI300X, from published results of the same software.

python -m tests.benchmarks.dense_pairs     fits the constants, and prints every row beside its prediction

There are two kinds of rows (published/mi300x_mi325x_pairs.csv). A `prompt` is the median TTFT of long
prompts of one model on both GPUs, a few at a time: the ratio says how much faster one GPU computes. The
others are the mean time per output token T of a node under Poisson arrivals (MLPerf). An engine that gets r
requests a second and steps every T seconds computes r T requests in a step. So T = fixed + r T x, and

    r = (1 - fixed / T) / x,    fixed = launches and weight reads,    x = seconds of one request's tokens

The rate at which the model reaches the published T is compared with the published rate: near saturation T
itself says little.
"""

import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.stats.map_fit import Floats, fit
from conf import Experiment, load
from conf.constants import replaced
from serve_apps.engine_model.cost.step_time import Batch, roofline
from tests.benchmarks.evidence.fits import constant_lines, prior_between

PAIRS = Path(__file__).with_name("published") / "mi300x_mi325x_pairs.csv"
STEP = "model.step_time."
COMPUTE = "hardware.efficiency.compute"
PRIOR = {
    STEP + "gemm_decode": (0.25, 0.6),
    STEP + "layer_us": (10.0, 110.0),
    COMPUTE: (0.98, 1.28),
}
"""95 % of what is thought possible of each before these rows. Tuned FP8 GEMMs of this model reach .29 to .55
of the peak at 128 to 3,000 tokens (AMD's tuning tables in inference_results_v5.1); a layer launches some ten
kernels from a graph; MI325X has the compute units of MI300X, and 1000 W instead of 750."""
PROMPT_TOKENS = 7373
"""Mean prompt of the long pairs: uniform between .8 and 1 of 8192."""
INPUT, OUTPUT, CONTEXT, PAIRS_OF_PROMPT = 222.3, 301.0, 440.0, 39_400.0
"""The requests of MLPerf's Llama-2-70B (OpenORCA, 24,576 samples): mean tokens, mean context of a decode
step, and mean pairs of a prompt. Outputs are the reference's times 1.38 and at most 1024, which gives the
published mean."""
GPUS = 8
TEAM, FORM = 0.03, 0.05
"""sd (ln) of a rate between teams with one release, and of what the form misses of a pair (our choices)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published figure, as compared: ln of a ratio, or of QPS per node at the published T."""

    label: str
    kind: str
    gpu: str
    seconds: float
    measured: float
    noise: float


def read(path: Path = PAIRS) -> list[Row]:
    """The rates of every team, and for each source of prompts the mean ratio over its dates."""
    with path.open(newline="") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows = []
    for line in lines:
        if line["kind"] != "prompt":
            label = f"{line['gpu']} {line['kind']}, {line['run']}"
            rate = math.log(float(line["node_qps"]))
            rows.append(Row(label, line["kind"], line["gpu"], float(line["seconds"]), rate, TEAM))
    prompts = [line for line in lines if line["kind"] == "prompt"]
    for source in dict.fromkeys(line["source"] for line in prompts):
        logs = {
            gpu: np.mean(
                [
                    math.log(float(line["seconds"]))
                    for line in prompts
                    if (line["source"], line["gpu"]) == (source, gpu)
                ]
            )
            for gpu in ("MI300X", "MI325X")
        }
        rows.append(Row(source, "prompt", "", 0.0, float(logs["MI300X"] - logs["MI325X"]), FORM))
    return rows


def machine(model: str, gpu: str, layout: str, values: dict[str, float]) -> Experiment:
    """The engine with other constants; those of the dense card count for that model alone."""
    experiment = load([f"model={model}", f"hardware={gpu.lower()}", f"layout={layout}", "cluster=mi325x_1n"])
    own = {path: value for path, value in values.items() if path == COMPUTE or model == "llama2_70b_fp8"}
    if STEP + "gemm_decode" in own:
        own[STEP + "gemm_prefill"] = own[STEP + "gemm_decode"]
    return replaced(experiment, own)


def ln_rate(row: Row, values: dict[str, float]) -> float:
    """ln QPS of a node whose engines step every `row.seconds`."""
    experiment = machine("llama2_70b_fp8", row.gpu, "dp8_tp1", values)
    cost = roofline(experiment.model, experiment.hardware, experiment.layout)
    request_s = (
        INPUT * cost.prefill_gemm_token_s
        + OUTPUT * (cost.decode_gemm_token_s + cost.host_sequence_s + CONTEXT * cost.context_token_s)
        + PAIRS_OF_PROMPT * cost.attention_pair_s
    )
    fixed_s = cost.launch_s + cost.weight_read_s
    return math.log(GPUS * max(1e-3, 1 - fixed_s / row.seconds) / request_s)


def ln_ratio(values: dict[str, float]) -> float:
    """ln of a long prompt's time on MI300X over that on MI325X."""
    seconds = []
    for gpu, pace in (("MI300X", 1.0), ("MI325X", values[COMPUTE])):
        experiment = machine("deepseek_v32_fp8", gpu, "dp1_tp8", {})
        cost = roofline(experiment.model, experiment.hardware, experiment.layout)
        batch = Batch(sequences=1)
        batch.add_chunk(PROMPT_TOKENS, 0)
        terms = cost.terms(batch)
        computed = terms[3] + terms[4] + terms[8]
        seconds.append(
            sum(terms) - computed + computed * experiment.model.posterior.paces.get(gpu, 1.0) / pace
        )
    return math.log(seconds[0] / seconds[1])


def predicted(rows: Sequence[Row], at: Floats) -> Floats:
    values = dict(zip(PRIOR, np.exp(at).tolist(), strict=True))
    ratio = ln_ratio(values)
    return np.array([ratio if row.kind == "prompt" else ln_rate(row, values) for row in rows])


def main() -> int:
    """Fit, and print constants and rows; returns 0."""
    rows = read()
    measured, noise = np.array([row.measured for row in rows]), np.array([row.noise for row in rows])
    fitted = fit(lambda at: predicted(rows, at), measured, prior_between(PRIOR.values()), noise=noise)
    print("\n".join(constant_lines(tuple(PRIOR), fitted)))
    print(f"scatter beyond the noise: {100 * fitted.scatter:.1f} %")
    for row, off in zip(rows, fitted.residuals, strict=True):
        unit = "x" if row.kind == "prompt" else "QPS"
        published, answer = math.exp(row.measured), math.exp(row.measured + off)
        print(f"  {row.label:<64} {published:8.4g} {unit:<4}{answer:8.4g}  {100 * math.expm1(off):+.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
