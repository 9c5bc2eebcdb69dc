"""The verb `recommend`: every shape predicted, what to measure; with --measure, measured.

The words are in `shape_words`, the order is in `analysis.recommendation`.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

from analysis.planning.evidence import NotPlannable, of_predicted
from analysis.planning.plan import demand_rates
from analysis.recommendation import ranking
from analysis.recommendation.ranking import (
    BUDGET,
    LAYOUT,
    Candidate,
    ProposedMeasurement,
    RankedShape,
    RecommendationVerdict,
    ShapeRanking,
    UnrankedShape,
)
from analysis.results import summary
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.predictions import PredictionVerdict
from analysis.results.runs import RunError, refuse_out
from analysis.views import recommend as recommend_view
from conf import ConfigError, Experiment
from conf.io import terminal
from loadgen.cli import engine_model, machine, output, prediction, two_sides
from loadgen.cli.output import planned_run
from loadgen.cli.shape_words import Shape, ShapeQuestion
from loadgen.cli.words import checked_experiment
from loadgen.predict import grid
from loadgen.predict.grid import Cell
from loadgen.predict.uncertainty import DRAWS, ParallelMap
from loadgen.run.run_folder import json_text
from loadgen.search import pacing
from loadgen.studies import matrix_study
from loadgen.studies.matrix_study import MatrixStudy

KV_FULL = 0.8
"""A KV cache used to this part on average is full at times, and limits too (our choice)."""
ON_SIMULATED = (
    "the commands load a simulated engine, whose constants are the prediction's own: they show how it "
    "serves, not what the hardware does; on your nodes add engine=vllm cluster=mi325x_1n"
)

Task = tuple[Experiment, int]
"""A shape's experiment, and how many draws of the constants it gets."""
SAID_EVERY = 5
"""Shapes between two lines of progress (our choice)."""


def recommend(arguments: argparse.Namespace) -> int:
    """Rank the shapes of a node by the nodes that a demand needs, and say what to measure to be sure."""
    refuse_out(arguments.out, *output.SUFFIXES)
    question = ShapeQuestion.of(arguments.words, arguments.config)
    peak_qps = demand_rates(question.specs.demand).peak_qps
    shapes = question.shapes()
    good = [shape.experiment for shape in shapes if shape.experiment]
    if not good:
        why = list(dict.fromkeys(shape.refused for shape in shapes))
        raise ConfigError(why[0] if len(why) == 1 else f"no shape is feasible; {shapes[0].name}: {why[0]}")
    if arguments.dry_run:
        more = _to_measure(question, shapes) if arguments.measure else []
        lines = [*_planned(shapes, peak_qps), *more, "the first one is below"]
        return output.plan(arguments, planned_run(good[0], 0), lines)
    with prediction.processes() as parallel_map:
        shapes = predicted(shapes, parallel_map, output.noting(arguments))
    try:
        verdict = answered(question, shapes, peak_qps)
    except NotPlannable as error:
        terminal.error(error)
        return error.exit_code
    if arguments.out:
        output.write(arguments.out, recommend_view.recommendation_rows(verdict), to_tree(verdict))
    if arguments.measure:
        beside = {ranking.FILE: json_text(to_tree(verdict))}
        study = MatrixStudy(cells(question, shapes, verdict), beside)
        machine.refuse(study.experiment)
        from loadgen.cli import measuring

        return output.reported(measuring.measured(arguments, study), arguments.json)
    return output.printed(verdict, arguments.json)


def _planned(shapes: Sequence[Shape], peak_qps: float) -> list[str]:
    good = sum(shape.experiment is not None for shape in shapes)
    lines = [f"{good} of {len(shapes)} shapes are predicted for {peak_qps:g} QPS at the peak"]
    for shape in shapes:
        hit = "" if shape.hit is None else f", prefix hit {shape.hit:g}"
        words = shape.experiment.layout.shape if shape.experiment else f"infeasible: {shape.refused}"
        lines.append(f"{shape.name}{hit}: {words}")
    return lines


def _to_measure(question: ShapeQuestion, shapes: Sequence[Shape]) -> list[str]:
    """The study that --measure adds. Raises ConfigError where the first feasible shape cannot be measured."""
    first = next(shape for shape in shapes if shape.experiment)
    experiment = _measured(question, first)
    minutes = _load_s(experiment, pacing.swept_s(experiment)) / 60
    return [
        "then those that the proposals name are measured, at most "
        f"{ranking.MOST_RIVALS + 1} for each hit rate: "
        f"one study, each deployed once, some {minutes:.0f} min of load each"
    ]


def predicted(shapes: Sequence[Shape], parallel_map: ParallelMap, say: Callable[[str], None]) -> list[Shape]:
    """The shapes with their answers, infeasible ones without.

    After a first look at all, those that may be the best are predicted at length, under the draws of a
    prediction, the same ones for all. The others get a few draws (`grid.WORTHLESS`).
    """
    good = {place: shape for place, shape in enumerate(shapes) if shape.experiment}
    scouts = [_task(shape, grid.SCOUT_S, 0) for shape in good.values()]
    answers = dict(zip(good, _mapped(parallel_map, scouts, "looked at", say), strict=True))
    best: dict[float | None, float] = {}
    for place, shape in good.items():
        best[shape.hit] = max(best.get(shape.hit, 0.0), _qps(answers[place]))
    tasks: dict[int, Task] = {}
    for place, answer in answers.items():
        if not isinstance(answer, str):
            is_likely = _qps(answer) >= grid.WORTHLESS * best[good[place].hit]
            tasks[place] = _task(good[place], grid.RANKING_S, DRAWS if is_likely else grid.FEW_DRAWS)
    answers |= zip(tasks, _mapped(parallel_map, list(tasks.values()), "predicted", say), strict=True)
    return [replace(shape, answer=answers.get(place)) for place, shape in enumerate(shapes)]


def _task(shape: Shape, budget_s: float, draws: int) -> Task:
    assert shape.experiment is not None
    return replace(shape.experiment, search=replace(shape.experiment.search, budget_s=budget_s)), draws


def _mapped(
    parallel_map: ParallelMap, tasks: Sequence[Task], word: str, say: Callable[[str], None]
) -> list[PredictionVerdict | str]:
    answers: list[PredictionVerdict | str] = []
    for answer in parallel_map(_answer, tasks):
        answers.append(answer)
        if len(answers) % SAID_EVERY == 0 or len(answers) == len(tasks):
            say(f"{len(answers)} of {len(tasks)} shapes are {word}")
    return answers


def _answer(task: Task) -> PredictionVerdict | str:
    experiment, draws = task
    try:
        return engine_model.predict(experiment, draws=draws)
    except ValueError as error:
        return str(error)


def _qps(answer: PredictionVerdict | str) -> float:
    if isinstance(answer, str) or answer.capacity is None:
        return 0.0
    return answer.capacity.qps_per_node.value


def answered(question: ShapeQuestion, shapes: Sequence[Shape], peak_qps: float) -> RecommendationVerdict:
    """The recommendation of the predicted shapes, a ranking for each hit rate.

    Raises NotPlannable where no shape has a capacity, RunError where no number of nodes serves the peak.
    """
    first = next(shape.experiment for shape in shapes if shape.experiment)
    rankings = [
        _ranking(question, [shape for shape in shapes if shape.hit == hit], peak_qps) for hit in question.hits
    ]
    is_proposed = any(ranking.proposed for ranking in rankings)
    return RecommendationVerdict(
        experiment=describe(first),
        peak_qps=peak_qps,
        care=question.specs.plan,
        gpus_per_node=first.cluster.gpus_per_node,
        rankings=tuple(rankings),
        notes=(ON_SIMULATED,) if is_proposed and question.is_simulated else (),
        exit_code=summary.EXIT_OK,
    )


def _ranking(question: ShapeQuestion, shapes: Sequence[Shape], peak_qps: float) -> ShapeRanking:
    results = [_candidate(shape) for shape in shapes]
    candidates = [each for each in results if isinstance(each, Candidate)]
    unranked = [each for each in results if isinstance(each, UnrankedShape)]
    by_name = {shape.name: shape for shape in shapes}
    order = ranking.ranked(shapes[0].hit, candidates, unranked, peak_qps, question.specs.plan)
    first = by_name[order.first.name]
    sides = [[first, by_name[rival.name]] for rival in ranking.rivals(order)] or [[first]]
    proposed = [proposal for side in sides if (proposal := _proposal(question, side))]
    return replace(order, proposed=tuple(proposed))


def _candidate(shape: Shape) -> Candidate | UnrankedShape:
    """The prediction of the engine model for a shape, or the reason why it has no rank."""
    answer = shape.answer
    if shape.experiment is None or answer is None:
        return UnrankedShape(name=shape.name, kind="infeasible", reason=shape.refused)
    if isinstance(answer, str):
        return UnrankedShape(name=shape.name, kind="not predicted", reason=answer)
    try:
        evidence = of_predicted(answer)
    except RunError as error:
        return UnrankedShape(name=shape.name, kind="not ranked", reason=answer.reason or str(error))
    assert answer.capacity and answer.forecast
    draws = answer.forecast.of_capacity.draws if answer.forecast.of_capacity else 0
    ranked = RankedShape(
        name=shape.name,
        layout=shape.at[LAYOUT],
        budget_tokens=shape.at[BUDGET],
        shape=shape.experiment.layout.shape,
        gpus=shape.experiment.layout.gpus_per_node,
        qps_per_node=evidence.qps_per_node,
        binding=answer.capacity.binding,
        draws=draws,
        kv_full=(answer.forecast.kv_used or 0.0) >= KV_FULL,
        assumed=answer.constants.assumed if answer.constants else (),
    )
    ln_qps = grid.joint_ln_qps(shape.experiment, answer, alone=draws != DRAWS)
    return Candidate(ranked, evidence, ln_qps)


def _measured(question: ShapeQuestion, shape: Shape) -> Experiment:
    """The experiment that measures a shape. Raises ConfigError."""
    return checked_experiment("sweep", [*question.service, *shape.words], question.config)


def _proposal(question: ShapeQuestion, several: Sequence[Shape]) -> ProposedMeasurement | None:
    """The command of a measurement; None where its words make no experiment, as of GPUs that are not here."""
    first = several[0]
    hits = [word for word in first.words if word.startswith("workload.")]
    shape_words = [[word for word in shape.words if word not in hits] for shape in several]
    try:
        if len(several) == 1:
            words, verb = [*shape_words[0], *hits], "sweep"
            a = _measured(question, first)
            load_s = _load_s(a, pacing.swept_s(a))
        else:
            sides = [[f"{side}.{word}" for word in own] for side, own in zip("ab", shape_words, strict=True)]
            words, verb = [*sides[0], *sides[1], *hits], "compare"
            a, _ = two_sides.compared([*words, *question.service], question.config)
            load_s = _load_s(a, pacing.compared_s(a))
    except ConfigError:
        return None
    return ProposedMeasurement(
        command=question.command(verb, words),
        shapes=tuple(shape.name for shape in several),
        load_s=load_s,
    )


def _load_s(experiment: Experiment, load_s: float) -> float:
    """The time under load with the longer budget of a low rate."""
    return load_s * planned_run(experiment, load_s).longer


def cells(question: ShapeQuestion, shapes: Sequence[Shape], verdict: RecommendationVerdict) -> list[Cell]:
    """The cells of the study that measures what is proposed: every named shape once at each hit rate.

    Raises ConfigError for a shape that cannot be measured here.
    """
    wanted = {
        (name, ranking.hit)
        for ranking in verdict.rankings
        for name in [ranking.first.name, *(name for each in ranking.proposed for name in each.shapes)]
    }
    measured = [shape for shape in shapes if (shape.name, shape.hit) in wanted]
    return [
        Cell(f"cell-{number}", shape.at, matrix_study.one_sweep(_measured(question, shape)))
        for number, shape in enumerate(measured, 1)
    ]
