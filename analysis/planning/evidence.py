"""Evidence for a plan from a run, a study or a prediction; knows no demand, no price and no rule.

The interval is that of the answer: for a run the sampling noise of its posterior, for a prediction the
uncertainty of the engine model's constants. `predicted` and `caution` say which.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.planning import request_means
from analysis.planning.request_means import MeanLengths
from analysis.results import locations, matrix_table, studies, summary
from analysis.results.runs import Run, RunError, load_run
from analysis.rows import metrics
from analysis.stats.pooling import NORMAL_975
from conf import ConfigError

Tree = Mapping[str, Any]

REAL_NODES = ("vllm",)
"""Engines that load a model's weights on a node, so that their start-up time is that of a node."""
PREDICTED = (
    "predicted, not measured: the interval is what is unknown of the engine model's constants, and Monte "
    "Carlo noise; what the model lacks is not in it"
)


class NotPlannable(RunError):
    """A result that allows no plan; `exit_code` is that of the run."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Qps:
    """A capacity in QPS per node with its 95 % interval; an unknown figure is None."""

    estimate: float | None
    low: float | None
    high: float | None
    certified: float | None


@dataclass(frozen=True, slots=True)
class IntervalEstimate:
    """A figure with its 95 % interval; an unknown end is None."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of_ln(cls, value: float, sd: float) -> "IntervalEstimate":
        """A value whose logarithm is normal with this sd."""
        return cls(value, value * math.exp(-NORMAL_975 * sd), value * math.exp(NORMAL_975 * sd))

    def times(self, factor: float) -> "IntervalEstimate":
        """Value and ends times a factor above 0."""
        ends = (None if end is None else end * factor for end in (self.low, self.high))
        return IntervalEstimate(self.value * factor, *ends)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One capacity and the measurements beside it; None is unknown.

    `open_above`: only a lower bound of the capacity is known. `e2e_s` is the mean life of a request near
    capacity, `client_cpu_ms` the load generator's CPU per request, `ready_minutes` the time from deployment
    until the service was warm. For a cell of a grid of predictions `own_ln_sd` is the sd of ln capacity that
    it does not share with the first cell. `engine_settings` are known from a run folder only.
    """

    name: str
    asked: Mapping[str, Any]
    predicted: bool
    caution: str
    qps: Qps
    open_above: bool
    lengths: MeanLengths | None
    e2e_s: float | None = None
    client_cpu_ms: float | None = None
    ready_minutes: float | None = None
    own_ln_sd: float | None = None
    engine_settings: Mapping[str, Any] | None = None

    @property
    def nodes(self) -> int:
        """Nodes of the measurement."""
        return int(self.asked["nodes"])

    @property
    def service(self) -> dict[str, Any]:
        """Properties that two capacities of one service have in common, whatever its size and load."""
        asked = self.asked
        same = ("engine", "model", "hardware", "layout", "routing", "data_path", "slo", "arrivals")
        return {
            "predicted": self.predicted,
            **{name: asked.get(name) for name in same},
            "engine settings": self.engine_settings,
        }


Source = Run | Tree | Evidence


def read(path: Path | str) -> list[Evidence]:
    """The evidence in the folder of a run or study; for a matrix one for each cell with a capacity.

    Raises RunError for any other folder, NotPlannable for one without a capacity.
    """
    path = locations.local(path)
    if not studies.is_study(path):
        return [of_run(load_run(path))]
    study = studies.load_study(path)
    if study["study"] == matrix_table.KIND:
        good = [cell["exit_code"] == summary.EXIT_OK for cell in study["cells"]]
        _refuse_first(str(path), good)
        cells = [path / cell["name"] for cell, is_good in zip(study["cells"], good, strict=True) if is_good]
        return [found for cell in cells for found in read(cell)]
    if study["study"] not in ("deployments", "repeats"):
        names = ", ".join(f"{path}/{name}" for name in study["names"])
        raise RunError(f"{path} compares or records; plan on one of its parts: {names}")
    found = of_tree(study, path.name)
    parts = [of_run(load_run(part)) for part in studies.parts(path) if not studies.is_study(part)]
    return [_with_rows(found, parts[0])] if parts else [found]


def evidence_of(source: Source) -> Evidence:
    """The evidence of a run, or of the tree of sweep.json, study.json or a prediction."""
    if isinstance(source, Evidence):
        return source
    return of_run(source) if isinstance(source, Run) else of_tree(source)


def of_run(run: Run) -> Evidence:
    """The evidence in the verdict and the rows of a run. Raises RunError, NotPlannable."""
    if run.sweep is None:
        raise RunError(f"{run.path} did not end; go on with python -m loadgen resume {run.path}")
    found = of_tree(run.sweep, run.name)
    rows = request_means.answers(run)
    return replace(
        found,
        lengths=request_means.lengths(rows) or found.lengths,
        e2e_s=float(metrics.e2e(rows).mean()) / 1e3 if rows.num_rows else None,
        client_cpu_ms=request_means.client_cpu_ms(run),
        ready_minutes=_ready_minutes(run),
        engine_settings=_engine_settings(run),
    )


def of_tree(tree: Tree, name: str = "") -> Evidence:
    """The evidence in a verdict alone, with lengths as they were asked. Raises RunError, NotPlannable."""
    name = name or str(tree.get("run_id") or _foreseen_name(tree))
    _refuse(tree, name)
    capacity, predicted = tree["capacity"], tree.get("clock") == "virtual"
    figures = Qps(
        **{end: capacity["qps_per_node"].get(end) for end in ("estimate", "low", "high", "certified")}
    )
    open_above = bool(capacity.get("open_above")) and not (predicted and figures.low is not None)
    if open_above:
        # A prediction that ends at the highest rate knows nothing else; the rest of a run is its prior.
        figures = Qps(None, figures.estimate if predicted else figures.low, None, None)
    return Evidence(
        name=name,
        asked=tree["asked"],
        predicted=predicted,
        caution=_predicted(tree) if predicted else summary.engine_label(tree),
        qps=figures,
        open_above=open_above,
        lengths=_foreseen(tree) if predicted else _asked(tree),
        e2e_s=_little_s(tree["forecast"]) if predicted else None,
        own_ln_sd=_own_ln_sd(tree) if predicted else None,
    )


def _predicted(tree: Tree) -> str:
    """The caution of a prediction, with the probability that a lower bound is kept."""
    kept = tree["forecast"].get("kept_probability")
    if kept is None:
        return PREDICTED
    return (
        f"{PREDICTED}; the bounds are kept at that rate in {100 * kept:.0f} % of the draws of the constants"
    )


def _foreseen_name(tree: Tree) -> str:
    """The name of a prediction; a cell of a grid is named by its place."""
    at = ", ".join(f"{key}={value}" for key, value in tree.get("at", {}).items())
    return f"prediction at {at}" if at else "prediction"


def _refuse(tree: Tree, name: str) -> None:
    """Raise RunError or NotPlannable for a verdict without a capacity."""
    if tree.get("exit_code") is None:
        raise RunError(f"{name} has not ended; nothing can be planned on it yet")
    if not tree.get("capacity") and tree.get("probe"):
        raise RunError(f"{name} judged one rate and has no capacity; plan on a sweep or a prediction")
    code, valid = int(tree["exit_code"]), bool(tree.get("valid"))
    if not valid or not tree.get("capacity") or code not in (summary.EXIT_OK, summary.EXIT_OPEN):
        why = tree.get("reason") or "it has no capacity"
        raise NotPlannable(f"nothing may be planned on {name}: {why}", code or summary.EXIT_VOID)
    if tree["capacity"].get("open_below") and tree.get("clock") != "virtual":
        raise NotPlannable(
            f"{name} shows only an upper bound of the capacity; measure at lower rates (search.lowest_qps)",
            summary.EXIT_OPEN,
        )


def _asked(tree: Tree) -> MeanLengths | None:
    basis = tree.get("basis")
    if not basis:
        return None
    hit = float(basis.get("prefix_hit") or 0.0)
    return MeanLengths(
        float(basis["input_tokens"]), float(basis["output_tokens"]), hit, "means of the workload"
    )


def _foreseen(tree: Tree) -> MeanLengths | None:
    found = tree["forecast"]
    rate = found["rate_qps_per_node"]
    if not found["steady"] or not rate:
        return None
    n_in, n_out = (found[f"{side}_tokens_per_s_per_node"] / rate for side in ("input", "output"))
    return MeanLengths(n_in, n_out, found["cached_share_of_input"], "means of the predicted requests")


def _little_s(found: Tree) -> float | None:
    """Mean life of a request, from those in flight (Little's law)."""
    in_flight = found.get("in_flight_per_node")
    return None if in_flight is None else float(in_flight / found["rate_qps_per_node"])


def _own_ln_sd(tree: Tree) -> float | None:
    """Sd of ln of the ratio to the first cell of the grid, draw by draw; for the first cell its noise."""
    ratio = tree.get("ratio")
    if not ratio:
        return None
    noise = (tree["forecast"].get("noise_pct") or 0.0) / 100
    return max(noise, math.log(ratio["high"] / ratio["low"]) / (2 * NORMAL_975))


def _ready_minutes(run: Run) -> float | None:
    """Minutes from the deployment until the service was warm; None if it was not deployed on real nodes."""
    ready_s = (run.manifest.get("server") or {}).get("ready_s")
    real = run.sweep is not None and run.sweep["asked"]["engine"] in REAL_NODES
    return ready_s / 60 if real and ready_s else None


def _engine_settings(run: Run) -> dict[str, Any] | None:
    """Settings of the engine; None for a run whose experiment this version cannot read."""
    try:
        return asdict(run.config.engine)
    except (ConfigError, RunError):
        return None


def _with_rows(found: Evidence, part: Evidence) -> Evidence:
    """The evidence of a study with what the rows of its first part add."""
    names = ("lengths", "e2e_s", "client_cpu_ms", "ready_minutes", "engine_settings")
    return replace(found, **{name: getattr(part, name) for name in names})


def expanded(sources: Sequence[Source]) -> list[Source]:
    """Grids of predictions as their cells, without refused ones. Raises NotPlannable if the first is."""
    out: list[Source] = []
    for source in sources:
        cells = source.get("cells") if isinstance(source, Mapping) else None
        if cells is not None:
            _refuse_first("the grid", [bool(cell.get("capacity")) for cell in cells])
        out += [source] if cells is None else [cell for cell in cells if cell.get("capacity")]
    return out


def _refuse_first(name: str, good: Sequence[bool]) -> None:
    """Raise NotPlannable if the first cell, on which a plan rests, has no capacity."""
    if not any(good):
        raise NotPlannable(f"{name}: no cell has a capacity", summary.EXIT_VOID)
    if not good[0]:
        raise NotPlannable(
            f"{name}: its first cell, which a plan stands on, has no capacity; begin with another",
            summary.EXIT_VOID,
        )
