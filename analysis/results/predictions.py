"""The answer of the engine model: a capacity, one rate, a replay, the ladder on the virtual clock, a grid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from analysis.results.experiment_facts import ConstantsBasis, ExperimentFacts
from analysis.results.figures import CapacityFigures, ProbeFigures, WindowRow
from analysis.results.published_ladder import LadderFigures
from analysis.rows import parquet
from analysis.stats.estimate import Estimate
from conf.specs.bounds import LIMITS, Limit, column
from conf.specs.experiment import Constant


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionForecast:
    """Sessions at the predicted rate, what routing made of them, and the memory they want.

    `reusable_share_of_input` is what a cache that forgets nothing would serve, if every turn met it.
    """

    replicas_per_session: float | None
    max_over_mean_share: float | None
    blocked_share: float | None
    reusable_share_of_input: float | None
    sessions_per_node: float
    sessions_over_kv: float
    simulated_nodes: int
    fill_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseForecast:
    """Monte Carlo noise of a capacity in percent (95 %), and the rough run that was varied."""

    noise_pct: float | None
    varied_nodes: int
    varied_node_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityDraws:
    """Draws of the uncertain constants around a capacity: ln of each draw's capacity over the estimate."""

    draws: int
    open_draws_below: int
    open_draws_above: int
    constants_sampled: tuple[str, ...]
    ln_ratios: tuple[float, ...]

    @property
    def open_draws(self) -> int:
        """Draws whose capacity lies beyond an end of the search."""
        return self.open_draws_below + self.open_draws_above


@dataclass(frozen=True, slots=True, kw_only=True)
class RateDraws:
    """Draws of the uncertain constants at one rate: the share that keeps its bounds, None without draws;
    in `overloaded_draws` the queue grows without end."""

    draws: int
    constants_sampled: tuple[str, ...]
    kept_probability: float | None
    overloaded_draws: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateForecast:
    """One node at one rate, by the engine model. Units are in the names; None is unknown.

    `limits_ms` are p90 TTFT, p90 TPOT, and the quantile of every other bound on one latency.

    Of a split node `kv_used` and `busy` are those of the engines that decode. At a low rate it may be that no
    request came in the simulated time: means over requests are then unknown.
    """

    rate_qps_per_node: float
    steady: bool
    limits_ms: Mapping[Limit, float | None]
    input_tokens_per_s_per_node: float | None
    image_tokens_per_s_per_node: float | None = 0.0
    output_tokens_per_s_per_node: float | None
    cached_share_of_input: float | None
    in_flight_per_node: float | None
    kv_used: float | None
    busy: float | None
    prefill_busy: float | None = None
    mfu: float | None
    step_terms: Mapping[str, float | None]
    requests: int
    simulated_node_s: float
    sessions: SessionForecast | None = None
    noise: NoiseForecast | None = None
    of_capacity: CapacityDraws | None = None
    of_rate: RateDraws | None = None

    @property
    def kept_probability(self) -> float | None:
        """The share of draws in which the bounds are kept; None where that was not asked."""
        return None if self.of_rate is None else self.of_rate.kept_probability

    @property
    def noise_pct(self) -> float | None:
        """Monte Carlo noise of the capacity; None where it is unknown."""
        return None if self.noise is None else self.noise.noise_pct


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayForecast:
    """A benchmark of so many requests on an empty service; `figures` by name, as `ttft_ms.p90`.

    A figure is None where it does not apply. `other_seeds` has each figure's interval under another seed; it
    is empty where chance moves nothing.
    """

    requests: int
    concurrency: int | None
    rate_qps_per_node: float | None
    input_tokens: float
    output_tokens: float
    figures: Mapping[str, Estimate | None]
    seeds: int
    other_seeds: Mapping[str, Estimate | None]
    draws: int
    constants_sampled: tuple[str, ...]
    kept_probability: float | None
    ln_throughput: tuple[float, ...]
    ln_throughput_of_seeds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRow:
    """One constant's part in the answer; `share` is its part of the variance of ln QPS."""

    path: str
    constant: Constant
    elasticity: float
    at_low_qps: float | None
    at_high_qps: float | None
    share: float
    ln_sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionVerdict:
    """An answer on the virtual clock, in the form of a run's verdict.

    It has a `forecast` with a `capacity` or a `probe`, a `replay` with a `probe`, or the ladder. `no_rate`:
    no rate keeps a bound, however low.
    """

    schema_version: int = 1
    experiment: ExperimentFacts
    clock: str = "virtual"
    windows: tuple[WindowRow, ...] = ()
    calibration: str | None = None
    constants: ConstantsBasis | None = None
    progressive: LadderFigures | None = None
    replay: ReplayForecast | None = None
    forecast: RateForecast | None = None
    capacity: CapacityFigures | None = None
    no_rate: bool = False
    sensitivity: tuple[SensitivityRow, ...] | None = None
    probe: ProbeFigures | None = None
    valid: bool = True
    passed: bool = False
    exit_code: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRefusal:
    """A cell that makes no experiment, and why."""

    exit_code: int
    reason: str
    valid: bool = False
    passed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCell:
    """One cell of a grid of predictions: its value `at` each axis, its answer or refusal, and the ratio to
    the first cell that has a capacity."""

    at: Mapping[str, Any]
    answer: PredictionVerdict | GridRefusal
    ratio: Estimate | None = None

    @property
    def prediction(self) -> PredictionVerdict | None:
        """The answer; None of a refused cell."""
        return self.answer if isinstance(self.answer, PredictionVerdict) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GridVerdict:
    """Predictions for every cell of a grid; `exit_code` is the highest of theirs."""

    axes: tuple[str, ...]
    cells: tuple[GridCell, ...]
    exit_code: int


LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "gap_ms": "p99 gap of a request", "e2e_ms": "E2E"}
PLACES = ("p50", "p90", "p99")
RATES = {
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tok/s",
    "total_tokens_per_s": "total tok/s",
}
"""Figures of a replay, with their words in a text."""
FORECASTS, REPLAYS = parquet.described("forecasts"), parquet.described("replays")
"""Columns of a file of predictions, behind those of the grid's axes."""


def grid_rows(cells: Sequence[GridCell], are_replays: bool) -> pa.Table:
    """A row per cell: its words as text, then its figures; null where there is no figure."""
    known = REPLAYS if are_replays else FORECASTS
    axes = dict.fromkeys((f"experiment.{key}" for cell in cells for key in cell.at), pa.string())
    schema = pa.schema([*axes.items(), *known])
    return pa.Table.from_pylist([_row(cell, known) for cell in cells], schema=schema)


def _row(cell: GridCell, schema: pa.Schema) -> dict[str, object]:
    row: dict[str, object] = {f"experiment.{key}": str(value) for key, value in cell.at.items()}
    row |= parquet.record_columns(schema, cell.answer) | parquet.estimate_columns(
        "ratio_to_first", cell.ratio
    )
    prediction = cell.prediction
    if prediction is None:
        return row
    experiment, forecast, replay = prediction.experiment, prediction.forecast, prediction.replay
    row |= parquet.record_columns(schema, experiment, prediction.capacity, replay)
    row |= {f"{limit}_p90_bound_ms": getattr(experiment.slo, column(limit)) for limit in LIMITS}
    if forecast:
        parts = forecast, forecast.sessions, forecast.noise, forecast.of_capacity, forecast.of_rate
        row |= parquet.record_columns(schema, *parts)
        row |= {column(limit): ms for limit, ms in forecast.limits_ms.items()}
    for name, figure in (replay.figures if replay else {}).items():
        row |= parquet.estimate_columns(name.replace(".", "_"), figure)
    return row
