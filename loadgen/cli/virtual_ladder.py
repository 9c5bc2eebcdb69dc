"""The MI325X paper's benchmark on the virtual clock, by the fast engine model. A composition root."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from analysis.results.types.ladder_figures import LevelFigures
from analysis.results.types.prediction_verdict import PredictionVerdict
from conf import ConfigError, Experiment
from loadgen.cli import engine_model
from loadgen.predict import ladder_rows
from loadgen.predict.capacity import quiet
from loadgen.studies import published_ladder as ladder
from loadgen.studies import published_verdict
from serve_apps.engine_model.compiled import fast_engine


def progressive(experiment: Experiment, say: Callable[[str], None] = quiet) -> PredictionVerdict:
    """The MI325X paper's benchmark on the virtual clock, each run with a seed of its own.

    Raises ConfigError for an engine that the fast model does not play.
    """
    runs = []
    for number in range(experiment.progressive.runs):
        say(f"{experiment.model.name}: run {number + 1} of {experiment.progressive.runs}")
        one = replace(experiment, seed=ladder.drawn_seed(experiment.seed, number))
        try:
            runs.append(_run(one, quiet if number else say))
        except fast_engine.UnsupportedByFastPath as why:
            raise ConfigError(
                f"progressive on the virtual clock cannot play this engine ({why}); use "
                "progressive.clock=wall"
            ) from why
    return published_verdict.predicted(experiment, runs)


def level_seconds(experiment: Experiment) -> list[float] | None:
    """Seconds of each level by the engine model; None if the fast model cannot play this service."""
    if experiment.engine.kind != "simulated" or experiment.replicas != 1:
        return None
    try:
        return [level.seconds for level in _run(experiment)]
    except fast_engine.UnsupportedByFastPath:
        return None


def _run(experiment: Experiment, say: Callable[[str], None] = quiet) -> list[LevelFigures]:
    return published_verdict.play_levels(ladder.levels(experiment), partial(played, experiment), say)


def played(experiment: Experiment, number: int, level: ladder.LevelPlan) -> pa.Table:
    """The request rows of one level, a closed loop on one empty engine."""
    schedule = level.schedule(number, 0, 0)
    asked = schedule.input_tokens, schedule.output_tokens, schedule.shared_tokens
    seed = ladder.drawn_seed(experiment.seed, number)
    seen = fast_engine.serve_closed(
        fast_engine.FastSpec.of(*engine_model.parts(experiment)), schedule.concurrency, asked, seed
    )
    times = seen.sent_s, seen.first_token_s, seen.last_token_s
    return ladder_rows.played_rows(schedule, *times, seen.cached_tokens)
