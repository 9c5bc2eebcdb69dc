"""Step-time constants fitted to times of exact batches, the JSON that `vllm bench forward` writes.

The times are those of a forward pass: no logits, no sampling, no host work. `step_ms`, what a sequence costs
the host and the front end are not in them and stay as they were. The bench serves one engine that is here, so
that teams and layouts have no spread; the pace of the GPU is in the efficiencies. With dummy weights the
bench spreads tokens evenly over the GPUs, and the experts of real prompts stay as they were too.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from analysis.calibration.fit import FittedConstants, machine_at, prior_of, refuse_words
from analysis.results.runs import RunError, refuse_out
from analysis.stats.map_fit import Floats, ParameterFit, fit
from conf import Experiment, load
from conf.constants import constants, replaced
from conf.specs.experiment import Constant, SimulatedEngine

STEP, REACHED = "model.step_time.", "hardware.efficiency."
SPREAD, IMBALANCE = STEP + "expert_spread", STEP + "expert_imbalance"
NOT_TIMED = tuple(
    STEP + name
    for name in ("step_ms", "host_per_sequence_us", "front_end_ms", "front_end_latency_ms", "image_token_us")
)
SCALES = STEP + "deployment_scale", STEP + "layout_scale", REACHED + "compute"
"""Constants that the efficiencies and times of this very engine hold already: exact, in what is written."""
LEAST_CASES, FOLDS = 8, 3
MOST_CASES, MOST_REQUESTS = 10_000, 100_000
RELATIVE_NOISE = 0.005
"""sd (ln) of a median of a hundred replays; vLLM warns above a spread of 0.5 %."""


@dataclass(frozen=True, slots=True)
class ForwardWork:
    """The tokens of a batch: one for each context of `decode_contexts`, and `chunks` of prompts.

    A chunk is its new tokens, and those that have their KV.
    """

    decode_contexts: tuple[int, ...]
    chunks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One batch and its time; `is_balanced` says that tokens were spread evenly over GPUs, not routed."""

    name: str
    work: ForwardWork
    seconds: float
    is_balanced: bool


Forward = Callable[[Experiment, ForwardWork], float]
"""Seconds of a batch by the engine model. Raises ValueError for a machine that it cannot time."""


def read(path: Path) -> list[Case]:
    """The cases of a file. Raises RunError with one line for anything else."""
    try:
        tree = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is no JSON of vllm bench forward --output-json: {error}") from error
    if not isinstance(tree, list) or not tree or len(tree) > MOST_CASES:
        raise RunError(f"{path}: vllm bench forward writes a list of cases, 1 to {MOST_CASES}")
    return [_case(path, entry) for entry in tree]


def _case(path: Path, entry: Any) -> Case:
    try:
        name, median_us = str(entry["case"]), float(entry["median_us"])
        rows = [{"num_draft_tokens": 0, **row} for row in entry["requests"]]
        lengths = [(int(row["query_len"]), int(row["kv_len"]), int(row["num_draft_tokens"])) for row in rows]
        routing = entry["ranks"][0].get("routing", "real") if entry.get("ranks") else "real"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: a case needs case, requests and median_us; one has no {error}") from error
    wrong = [length for length in lengths if not 1 <= length[0] <= length[1]]
    if wrong or not 0 < len(lengths) <= MOST_REQUESTS or not 0 < median_us < math.inf:
        raise RunError(f"{path}: case {name[:60]} has impossible lengths or no time above 0")
    if any(drafts for *_, drafts in lengths):
        raise RunError(
            f"{path}: case {name[:60]} verifies draft tokens, which the engine model does not know; run the "
            "bench without --speculative-config"
        )
    # One token after others decodes, also if it is the last one of a prompt, as in vLLM.
    contexts = tuple(whole - 1 for new, whole, _ in lengths if new == 1 < whole)
    chunks = tuple((new, whole - new) for new, whole, _ in lengths if not new == 1 < whole)
    return Case(name, ForwardWork(contexts, chunks), median_us * 1e-6, routing == "balanced")


def fitted(experiment: Experiment, cases: Sequence[Case], forward: Forward) -> tuple[FittedConstants, float]:
    """The constants of the step time, fitted against their prior, and the rms (ln) of cases left out.

    Raises RunError for too few cases.
    """
    if len(cases) < LEAST_CASES:
        raise RunError(
            f"{len(cases)} batches; a calibration needs {LEAST_CASES}: python -m serve_apps render "
            "--calibrate prints a designed set"
        )
    balanced = cases[0].is_balanced
    if any(case.is_balanced != balanced for case in cases):
        raise RunError("some batches have balanced routing and some real; run the bench once for all")
    scaled = replaced(experiment, dict.fromkeys(SCALES, 1.0))
    if balanced and scaled.model.experts:
        scaled = replaced(scaled, {SPREAD: 1.0, IMBALANCE: 1.0})
    known = {
        path: constant
        for path, constant in constants(scaled).items()
        if constant.low is not None and path.startswith((STEP, REACHED)) and path not in NOT_TIMED
    }
    prior = prior_of(known)

    def predicted(cases: Sequence[Case], at: Floats) -> Floats:
        machine = machine_at(scaled, tuple(known), at)
        return np.log([forward(machine, case.work) for case in cases])

    def fit_to(cases: Sequence[Case]) -> ParameterFit:
        noise = np.full(len(cases), RELATIVE_NOISE)
        return fit(partial(predicted, cases), _measured(cases), prior, noise=noise)

    away = []
    for fold in range(FOLDS):
        kept = [case for number, case in enumerate(cases) if number % FOLDS != fold]
        left = [case for number, case in enumerate(cases) if number % FOLDS == fold]
        away.append(predicted(left, fit_to(kept).at) - _measured(left))
    held_out = float(np.sqrt(np.mean(np.concatenate(away) ** 2)))
    exact = dict.fromkeys(SCALES, Constant(1.0, "ratio", f"this engine, {len(cases)} batches"))
    evidence = f"{len(cases)} batches of vllm bench forward"
    return FittedConstants(experiment, known, fit_to(cases), evidence, exact), held_out


def _measured(cases: Sequence[Case]) -> Floats:
    return np.log([case.seconds for case in cases])


def calibrate_forward(words: Sequence[str], file: Path, out: Path | None, forward: Forward) -> str:
    """Fit the constants of the machine of `words` to a file of `vllm bench forward`, and return the text.

    Raises RunError for other words, for a file or a machine that is not timed so, and for an existing `out`.
    """
    folders = [word for word in words if "=" not in word]
    if folders:
        raise RunError(f"'{folders[0]}' is a folder; with --forward the file alone is measured, leave it out")
    refuse_words(words)
    experiment = load(list(words))
    refuse_out(out, ".yaml", ".yml")
    if not isinstance(experiment.engine, SimulatedEngine):
        raise RunError(
            f"engine={experiment.engine.kind}: the constants are of the simulated engine; leave it out"
        )
    if experiment.layout.prefill is not None or experiment.layout.data_parallel > 1:
        raise RunError(
            f"layout {experiment.layout.name}: the bench times one engine without ranks; calibrate with a "
            "layout of the same tensor_parallel"
        )
    cases = read(file)
    try:
        fit, held_out = fitted(experiment, cases, forward)
    except ValueError as error:
        raise RunError(f"the engine model cannot time these batches: {error}") from error
    return fit.written(text(fit, cases, held_out), out)


def text(constants: FittedConstants, cases: Sequence[Case], held_out: float) -> str:
    """Errors, constants, what is not identified, and every batch measured and by the model."""
    layout = " + ".join(constants.experiment.layout.engine_kinds)
    machine = f"{constants.experiment.model.name} on {constants.experiment.hardware.name}, {layout}"
    lines = [
        f"{len(cases)} batches of {machine}: rms {100 * constants.fit.rms:.1f} %, batches left out "
        f"{100 * held_out:.1f} %; logits, sampling and host are not in them"
    ]
    lines += constants.lines()
    for case, off in zip(cases, constants.fit.residuals, strict=True):
        by_model = f"model {1e3 * case.seconds * math.exp(off):.4g} ms ({100 * math.expm1(off):+.1f} %)"
        lines.append(f"    {case.name[:60]} measured {1e3 * case.seconds:.4g} ms, {by_model}")
    return "\n".join(lines)
