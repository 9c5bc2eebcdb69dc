"""Table, verdict and plan text of the MI325X paper's benchmark.

The player, the engine model or an HTTP service, is handed in.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.asked import describe
from analysis.results.json_border import to_tree
from analysis.results.types.ladder_figures import LadderFigures, LadderLevel, LevelFigures, PublishedLevel
from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.verdict import Verdict
from conf import Experiment, kernels
from conf.specs.published_ladder import Progressive
from loadgen.run import export
from loadgen.studies import published_tables
from loadgen.studies.published_ladder import BASELINE, STRESS, LevelPlan, is_virtual, levels
from loadgen.studies.published_tables import PublishedModel, model_of, published_model_of

Play = Callable[[int, LevelPlan], pa.Table]
"""Plays a level of a number, and returns the rows of all its requests."""
Say = Callable[[str], None]


def play_levels(levels_to_play: Sequence[LevelPlan], play: Play, say: Say) -> list[LevelFigures]:
    """The figures of one run: every level played in order, with a progress line for each."""
    figures_by_level = []
    for number, level in enumerate(levels_to_play):
        figures_by_level.append(judged.figures(play(number, level)))
        say(progress_line(level, figures_by_level[-1]))
    return figures_by_level


def progress_line(level: LevelPlan, at: LevelFigures) -> str:
    """One played level as a progress line."""
    shape = f" ({level.shape})" if level.shape else ""
    return (
        f"{level.phase}{shape}, C = {level.concurrency}: {at.requests} requests in {at.seconds:.1f} s, "
        f"{at.total_tok_s:.0f} tok/s, p99 {at.p99_s:.2f} s"
    )


def level_table(
    plans: Sequence[LevelPlan], runs: Sequence[Sequence[LevelFigures]], subject: PublishedModel | None
) -> list[LadderLevel]:
    """The table of all runs; each level is compared with the previous one of its phase."""
    baseline = next(i for i, level in enumerate(plans) if level.phase == BASELINE)
    baseline_p99_s = float(np.mean([run[baseline].p99_s for run in runs]))
    out: list[LadderLevel] = []
    for number, level in enumerate(plans):
        follows = bool(out) and out[-1].phase == level.phase and level.phase != STRESS
        before = out[-1].total_tok_s if follows else None
        line = judged.row(level, [run[number] for run in runs], baseline_p99_s, before)
        if (row := level.published) and subject:
            left_out = subject.left_out.get((row.table, row.concurrency), "")
            figures = row.total_tok_s, row.output_tok_s, row.p99_s
            line = judged.compared(line, PublishedLevel(row.table, *figures, row.status, left_out))
        out.append(line)
    return out


def figures(
    experiment: Experiment,
    runs: Sequence[Sequence[LevelFigures]],
    clock: str,
    void: Mapping[int, str] | None = None,
) -> LadderFigures:
    """The figures of all runs; `void` maps void levels to their reasons."""
    it, subject, void = experiment.progressive, published_model_of(experiment), void or {}
    played = level_table(levels(experiment), runs, subject)
    lines = tuple(replace(line, void=void.get(number, "")) for number, line in enumerate(played))
    fit = judged.rms(lines) if it.as_published and not void else None
    return LadderFigures(
        profile=it.profile,
        requests_per_user=it.requests_per_user,
        prompts=it.prompts,
        lengths=it.lengths,
        runs=len(runs),
        clock=clock,
        as_published=it.as_published,
        caution="; ".join(filter(None, [_caution(experiment), *kernels.kernel_lines(experiment)])),
        how=description(it, len(runs), clock),
        levels=lines,
        figures=tuple(map(tuple, runs)),
        rms=fit,
        fit_rms=subject.fit_rms if subject and fit is not None else None,
        source=published_tables.SOURCE,
    )


def predicted(experiment: Experiment, runs: Sequence[Sequence[LevelFigures]]) -> PredictionVerdict:
    """The verdict of runs on the virtual clock."""
    return PredictionVerdict(
        asked=describe(experiment), **verdict_fields(figures(experiment, runs, "virtual"), {})
    )


def _caution(experiment: Experiment) -> str:
    """The reason why no published rows stand beside a model, or why its constants need one prompt."""
    own = model_of(experiment)
    if own and experiment.progressive.lengths == "workload":
        return "the lengths are the workload's, not the paper's; nothing stands beside these"
    if own and not published_model_of(experiment):
        return f"the paper's rows are of MI325X, {' and '.join(own.words[:2])}; nothing stands beside these"
    spread = experiment.model.step_time.expert_spread
    if experiment.progressive.prompts == "same" or experiment.engine.kind != "simulated" or spread.value == 1:
        return ""
    return (
        f"unique prompts choose their experts independently, but expert_spread is {spread.value:g}, fitted "
        "to one prompt: set model.step_time.expert_spread.value=1"
    )


def verdict_fields(ladder: LadderFigures, void: Mapping[int, str]) -> dict[str, Any]:
    """The fields of a verdict that the ladder decides: the ladder itself, the exit code and its reason."""
    code, reason = _exit(ladder.levels, void)
    passed = code == summary.EXIT_OK
    return {"progressive": ladder, "valid": not void, "passed": passed, "exit_code": code, "reason": reason}


def _exit(lines: Sequence[LadderLevel], void: Mapping[int, str]) -> tuple[int, str]:
    if void:
        first = next(iter(void.values()))
        return summary.EXIT_VOID, f"{len(void)} of {len(lines)} levels are void, the first for {first}"
    failing = sum(line.status == "FAILING" for line in lines)
    if failing:
        return (
            summary.EXIT_SLO_MISSED,
            f"{failing} levels are FAILING: under 95 % of their requests succeeded",
        )
    return summary.EXIT_OK, ""


def description(it: Progressive, runs: int, clock: str) -> str:
    """The benchmark's settings in one line."""
    if it.requests_per_user:
        counts = f"{it.requests_per_user} requests for each one in flight"
    else:
        counts = f"the paper's request counts{'' if it.profile == 'default' else f' x {it.multiplier:g}'}"
    prompts = "one prompt for all requests" if it.prompts == "same" else "unique prompts"
    return f"{counts}, {prompts}, {runs} run(s) on the {clock} clock, {published_tables.SOURCE}"


def models_tree(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The answers of several models as JSON, with the highest of their exit codes."""
    code = max(one.exit_code or 0 for one in verdicts)
    return {"event": "result", "exit_code": code, "models": [to_tree(one) for one in verdicts]}


def write(out: Path | None, verdicts: Sequence[Verdict]) -> None:
    """Write the levels of several models to `out`, in the format of its suffix, if it is given."""
    if out is not None:
        export.write(out, judged.rows(verdicts), models_tree(verdicts))


def plan_lines(experiment: Experiment, seconds: Sequence[float] | None) -> list[str]:
    """The plan, a line for each level; `seconds` are the engine model's times of the levels."""
    plans, it = levels(experiment), experiment.progressive
    clock = "virtual" if is_virtual(experiment) else "wall"
    out = [f"# {experiment.model.name}: {description(it, it.runs, clock)}"]
    out += [f"# {line}" for line in kernels.kernel_lines(experiment)]
    for number, level in enumerate(plans):
        images = f" ({level.image_tokens} of them image)" if level.image_tokens else ""
        shape = f" {level.shape}:" if level.shape else ""
        took = f", {seconds[number]:.0f} s" if seconds else ""
        out.append(
            f"# {level.phase}:{shape} {level.requests} requests, {level.in_flight} in flight (C = "
            f"{level.concurrency}), {level.prompt_tokens}{images} + {level.answers.mean():.5g} tokens{took}"
        )
    total = sum(level.requests for level in plans)
    lasts = f", {sum(seconds):.0f} s by the engine model" if seconds else ", as long as the service takes"
    return [*out, f"# {total} requests a run{lasts}; {it.runs} run(s)"]
