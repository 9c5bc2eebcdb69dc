"""Evidence for a plan: one capacity of a run, a study or a prediction, with the measurements beside it.

The interval is that of the answer: for a run the sampling noise of its posterior, for a prediction the
uncertainty of the engine model's constants, for a simulated run both. `found_by` and `caution` say which.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.results import locations, studies, summary
from analysis.results.experiment_facts import ExperimentFacts, describe
from analysis.results.figures import CapacityFigures, WindowRow
from analysis.results.json_border import from_tree
from analysis.results.predictions import GridCell, GridRefusal, GridVerdict, PredictionVerdict, RateForecast
from analysis.results.runs import Run, RunError, load_run
from analysis.results.verdicts import RunVerdict, StudyVerdict
from analysis.rows import metrics, records
from analysis.stats.estimate import Estimate
from conf import ConfigError
from conf.compose import UNKNOWN

FoundBy = Literal["measured", "simulated", "predicted"]


class NotPlannable(RunError):
    """A result that allows no plan; `exit_code` is that of the run."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class MeanLengths:
    """Means over requests in tokens; `prefix_hit` is the share of the prompt that was in the prefix cache.

    `source` says whether they were measured, on how many requests, or belong to the workload.
    """

    input_tokens: float
    output_tokens: float
    prefix_hit: float
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """One capacity and the measurements beside it; None is unknown.

    `open_above`: only a lower bound of the capacity is known. `ready_minutes` is the time from deployment
    until the service was warm. For a cell of a grid of predictions `own_ln_sd` is the sd of ln capacity that
    it does not share with the first cell. `engine_settings` is a fingerprint, known from a run folder only.
    `sampling_qps_per_node` is the capacity of a simulated run with the interval of its sampling noise alone.
    `gpus_per_node` counts those that engines use. `node_watts` is the
    mean power of a node that was measured, and `watts_source` of what and where.
    """

    name: str
    experiment: ExperimentFacts
    found_by: FoundBy
    caution: str
    qps_per_node: Estimate
    open_above: bool
    lengths: MeanLengths | None
    ready_minutes: float | None = None
    own_ln_sd: float | None = None
    engine_settings: str | None = None
    gpus_per_node: int | None = None
    sampling_qps_per_node: Estimate | None = None
    node_watts: float | None = None
    watts_source: str = ""

    @property
    def nodes(self) -> int:
        """Nodes of the measurement."""
        return self.experiment.nodes

    @property
    def service(self) -> Mapping[str, object]:
        """Properties that two capacities of one service have in common, whatever its size and load."""
        same = ("engine", "model", "hardware", "layout", "routing", "data_path", "slo", "arrivals")
        known = {name: getattr(self.experiment, name) for name in same}
        return {
            "predicted": self.found_by == "predicted",
            **{name: None if value == UNKNOWN else value or None for name, value in known.items()},
            "engine settings": self.engine_settings,
        }


COLUMNS = (
    *("window_index", "status", "time_scale", "turn_blocked_ns", "last_token_offset_ns"),
    *("engine_last_token_ns", "requested_input_tokens", "prompt_tokens", "cached_tokens", "output_tokens"),
)


def answers(run: Run) -> pa.Table:
    """The complete answers in the windows that the capacity rests on."""
    rows, used = run.requests(columns=COLUMNS, phase="window"), [row["index"] for row in valid_windows(run)]
    answered = metrics.status_in(rows, records.OK)
    among = pc.is_in(rows.column("window_index"), value_set=pa.array(used, pa.int16())).to_numpy()
    return rows.filter(pa.array(answered & among))


def valid_windows(run: Run) -> list[WindowRow]:
    """The windows that the capacity rests on."""
    windows = run.verdict.windows if run.verdict else ()
    return [row for row in windows if row["kind"] == "window" and row["valid"]]


def mean_lengths(rows: pa.Table) -> MeanLengths | None:
    """Mean mean_lengths by the server's count; without its count of prompts, by the planned ones."""
    prompt, output = metrics.numbers(rows, "prompt_tokens"), metrics.numbers(rows, "output_tokens")
    if not rows.num_rows or np.isnan(output).all():
        return None
    reported = not np.isnan(prompt).all()
    if not reported:
        prompt = metrics.numbers(rows, "requested_input_tokens")
    hit = metrics.prefix_hit(rows) if reported else None
    source = f"measured, means of {rows.num_rows} answers"
    return MeanLengths(float(np.nanmean(prompt)), float(np.nanmean(output)), hit or 0.0, source)


Tree = Mapping[str, Any]

REAL_NODES = ("vllm",)
"""Engines that load a model's weights on a node, so that their start-up time is that of a node."""
PREDICTED = (
    "predicted, not measured: the interval is what is unknown of the engine model's constants, and Monte "
    "Carlo noise; what the model lacks is not in it"
)


Measured = RunVerdict | StudyVerdict
Predicted = PredictionVerdict | GridCell
Source = Path | str | Run | Measured | Predicted | GridVerdict | Tree | Evidence
"""A capacity to plan on; a tree is that of sweep.json, study.json, a prediction or a grid of them."""


def evidence_of(source: Source) -> Evidence:
    """The evidence of a source with one capacity. Raises RunError, NotPlannable."""
    evidence, *others = capacities(source)
    if others:
        raise RunError("a grid has many capacities; give one of its cells")
    return evidence


def capacities(source: Source) -> list[Evidence]:
    """The evidence of a source; of a matrix or a grid of predictions that of each cell with a capacity.

    Raises RunError for another folder or a broken tree, NotPlannable for a source without a capacity.
    """
    if isinstance(source, Path | str):
        return _in_folder(locations.local(source))
    if isinstance(source, Mapping):
        kind: type[Measured | Predicted | GridVerdict] = GridVerdict if "cells" in source else RunVerdict
        kind = PredictionVerdict if source.get("clock") == "virtual" else kind
        kind = GridCell if "answer" in source else StudyVerdict if "study" in source else kind
        return capacities(from_tree(kind, source, "the verdict"))
    if isinstance(source, Evidence):
        return [source]
    if isinstance(source, Run):
        return [of_run(source)]
    if isinstance(source, GridVerdict):
        good = [cell for cell in source.cells if cell.prediction and cell.prediction.capacity]
        _refuse_without_first("the grid", source.cells, good)
        return [of_predicted(cell) for cell in good]
    return [of_measured(source) if isinstance(source, Measured) else of_predicted(source)]


def _in_folder(path: Path) -> list[Evidence]:
    if not studies.is_study(path):
        return [of_run(load_run(path))]
    study = studies.load_verdict(path)
    if study.is_matrix:
        good = [cell for cell in study.cells or () if cell.exit_code == summary.EXIT_OK]
        _refuse_without_first(str(path), study.cells or (), good)
        return [evidence for cell in good for evidence in _in_folder(path / cell.name)]
    if study.study not in ("deployments", "repeats"):
        names = ", ".join(f"{path}/{name}" for name in study.names)
        raise RunError(f"{path} compares or records; plan on one of its parts: {names}")
    pooled = of_measured(study, path.name)
    parts = [of_run(load_run(part)) for part in studies.parts(path) if not studies.is_study(part)]
    # What the rows of its first part add.
    rows = "lengths", "ready_minutes", "engine_settings", "gpus_per_node", "node_watts", "watts_source"
    return [replace(pooled, **{name: getattr(parts[0], name) for name in rows})] if parts else [pooled]


def _refuse_without_first(name: str, cells: Sequence[object], good: Sequence[object]) -> None:
    """Raise NotPlannable if the first cell, on which a plan rests, is not among those with a capacity."""
    if not good or good[0] is not cells[0]:
        reason = f"{name}: its first cell, which a plan stands on, has no capacity"
        raise NotPlannable(reason, summary.EXIT_VOID)


def of_run(run: Run) -> Evidence:
    """The evidence in the verdict and the rows of a run. Raises RunError, NotPlannable."""
    verdict = run.verdict
    if verdict is None:
        raise RunError(f"{run.path} did not end; go on with python -m loadgen resume {run.path}")
    evidence = of_measured(verdict, run.name)
    evidence = replace(evidence, lengths=mean_lengths(answers(run)) or evidence.lengths)
    ready_s = (run.manifest.get("server") or {}).get("ready_s")
    if ready_s and verdict.experiment.engine in REAL_NODES:
        evidence = replace(evidence, ready_minutes=ready_s / 60)
    try:
        experiment = run.config
    except (ConfigError, RunError):
        return evidence  # this version cannot read it
    settings = hashlib.sha256(json.dumps(asdict(experiment.engine), sort_keys=True).encode()).hexdigest()[:16]
    return replace(evidence, engine_settings=settings, gpus_per_node=describe(experiment).gpus_per_node)


def of_measured(verdict: Measured, name: str = "") -> Evidence:
    """The evidence in a verdict alone, with lengths as they were asked. Raises RunError, NotPlannable."""
    name = name or verdict.run_id or "the result"
    capacity = _capacity(verdict, name)
    if capacity.open_below:
        remedy = "measure at lower rates (search.lowest_qps)"
        if capacity.queue_grew:
            remedy = "measure with longer windows (search.window_s), for the queue still grew in them"
        raise NotPlannable(f"{name} shows only an upper bound of the capacity; {remedy}", summary.EXIT_OPEN)
    basis, power = (verdict.basis, verdict.power) if isinstance(verdict, RunVerdict) else (None, None)
    kind, lengths = capacity.kind(verdict.experiment), None
    caution = f"simulated, not measured; the interval is {kind}: {capacity.held}" if kind else ""
    if basis:
        n_in, n_out = float(basis.input_tokens), float(basis.output_tokens)
        lengths = MeanLengths(n_in, n_out, basis.prefix_hit, "means of the workload")
    quoted = power.quoted if power else None
    at = f"{quoted.rate_qps_per_node:.2f} QPS per node" if quoted else ""
    return Evidence(
        name=name,
        experiment=verdict.experiment,
        found_by="simulated" if verdict.experiment.is_modelled else "measured",
        caution=caution or summary.engine_label(verdict),
        qps_per_node=capacity.claimed,
        sampling_qps_per_node=capacity.claimed_of(capacity.sampling) if capacity.constants else None,
        open_above=capacity.open_above,
        gpus_per_node=verdict.experiment.gpus_per_node,
        lengths=lengths,
        node_watts=quoted.watts_per_node if quoted else None,
        watts_source=f"measured, of {power.of}, at {at}" if power and quoted else "",
    )


def of_predicted(source: Predicted) -> Evidence:
    """The evidence in a prediction, or in the cell of a grid. Raises RunError, NotPlannable."""
    cell = source if isinstance(source, GridCell) else None
    at = ", ".join(f"{key}={value}" for key, value in cell.at.items()) if cell else ""
    name = f"prediction at {at}" if at else "prediction"
    verdict = source.answer if isinstance(source, GridCell) else source
    if isinstance(verdict, GridRefusal):
        raise NotPlannable(f"nothing may be planned on {name}: {verdict.reason}", verdict.exit_code)
    capacity, forecast = _capacity(verdict, name), verdict.forecast
    if forecast is None:
        raise RunError(f"{name} has no forecast; predict it again")
    caution, kept = PREDICTED, forecast.kept_probability
    if kept is not None:
        caution += f"; the bounds are kept at that rate in {100 * kept:.0f} % of the draws of the constants"
    # The ratio to the first cell, draw by draw; of the first cell its noise.
    ratio, noise = cell.ratio if cell else None, (forecast.noise_pct or 0.0) / 100
    return Evidence(
        name=name,
        experiment=verdict.experiment,
        found_by="predicted",
        caution=caution,
        qps_per_node=capacity.qps_per_node,
        open_above=capacity.qps_per_node.is_lower_bound,
        gpus_per_node=verdict.experiment.gpus_per_node,
        lengths=_predicted_lengths(forecast),
        own_ln_sd=max(noise, ratio.ln_sd) if ratio else None,
    )


def _capacity(verdict: Measured | PredictionVerdict, name: str) -> CapacityFigures:
    capacity, code = verdict.capacity, verdict.exit_code
    if code is None:
        raise RunError(f"{name} has not ended; nothing can be planned on it yet")
    if not capacity and not isinstance(verdict, StudyVerdict) and verdict.probe:
        raise RunError(f"{name} judged one rate and has no capacity; plan on a sweep or a prediction")
    if not verdict.valid or not capacity or code not in (summary.EXIT_OK, summary.EXIT_OPEN):
        why = verdict.reason or "it has no capacity"
        raise NotPlannable(f"nothing may be planned on {name}: {why}", code or summary.EXIT_VOID)
    return capacity


def _predicted_lengths(forecast: RateForecast) -> MeanLengths | None:
    rate, hit = forecast.rate_qps_per_node, forecast.cached_share_of_input
    n_in, n_out = forecast.input_tokens_per_s_per_node, forecast.output_tokens_per_s_per_node
    if not forecast.steady or not rate or n_in is None or n_out is None or hit is None:
        return None
    return MeanLengths(n_in / rate, n_out / rate, hit, "means of the predicted requests")
