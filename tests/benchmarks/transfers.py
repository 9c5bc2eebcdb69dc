"""How far the constants of one model miss the step times of another: the spread behind `conf.constants`.

python -m tests.benchmarks.transfers

Each model's own constants stand for its measurements, to which they were fitted. A row is a model, and a
column the model whose constants are used. A number is ln of the step time over that with the model's own
constants, of decode steps and of one with a prompt.
"""

import math
import sys
from dataclasses import replace

from conf import load
from serve_apps.engine_model.cost.step_time import Batch, roofline

LAYOUTS = {
    "qwen3_235b_a22b_fp8": "dp1_tp8_ep8",
    "qwen3_vl_235b_bf16": "dp1_tp8",
    "llama31_405b_fp8": "dp1_tp8",
    "llama2_70b_fp8": "dp8_tp1",
    "deepseek_v32_fp8": "dp1_tp8",
    "kimi_k25_int4": "dp1_tp4",
}
"""Each model in a layout of its measurements."""
GROUPED = tuple(LAYOUTS)[:4]
"""Models with grouped-query attention; the other two have latent attention and kernels of their own."""
DECODERS, CONTEXT, PROMPT = (16, 64, 256), 2000, 4096


def batches() -> dict[str, Batch]:
    """Steps by name: some sequences decode, or 32 do beside a prompt."""
    steps = {
        f"{count} decode": Batch(decode_tokens=count, context_tokens=count * CONTEXT, sequences=count)
        for count in DECODERS
    }
    mixed = Batch(decode_tokens=32, context_tokens=32 * CONTEXT, sequences=32)
    mixed.add_chunk(PROMPT, 0)
    return steps | {"32 decode and a prompt": mixed}


def misses(batch: Batch) -> dict[tuple[str, str], float]:
    """ln of step time with the second model's constants over that with the first one's own."""
    asked = {
        name: load([f"model={name}", f"layout={layout}", "cluster=mi325x_1n"])
        for name, layout in LAYOUTS.items()
    }
    result = {}
    for name, experiment in asked.items():
        times = {}
        for other, theirs in asked.items():
            model = replace(
                experiment.model, step_time=theirs.model.step_time, posterior=theirs.model.posterior
            )
            times[other] = roofline(model, experiment.hardware, experiment.layout).duration_s(batch)
        result |= {(name, other): math.log(seconds / times[name]) for other, seconds in times.items()}
    return result


def main() -> int:
    """Print a table for each step, and the spread; returns 0."""
    grouped: list[float] = []
    for title, batch in batches().items():
        result = misses(batch)
        print(title)
        for name in LAYOUTS:
            print(f"  {name:<22}" + "".join(f"{result[name, other]:>7.2f}" for other in LAYOUTS))
        grouped += [result[name, other] for name in GROUPED for other in GROUPED if name != other]
    spread = math.sqrt(sum(miss**2 for miss in grouped) / len(grouped))
    print(f"rms among models with grouped-query attention: {spread:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
