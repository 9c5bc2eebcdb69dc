"""The MI325X paper's benchmark: its five phases as levels of a closed loop, played virtually or over HTTP.

The paper's figures imply the counts of scaling and saturation (docs/engine_checks.md). Of the other phases
only the purpose is published (docs.vultr.com, Inference Cookbook, Benchmarking Guide), so that their counts
and lengths are our choice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.predictions import PredictionVerdict
from analysis.results.published_ladder import LadderFigures, LadderLevel, LevelFigures, PublishedLevel
from analysis.results.studies import Parts
from analysis.results.verdicts import RunVerdict, StudyVerdict
from conf import Experiment, kernels
from conf.specs.experiment import Lengths, Workload
from conf.specs.request_sizes import MOST_IMAGES, Images, tokens_of
from conf.specs.search import Progressive
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.drive.prepared_load import refuse_failing, warm_up
from loadgen.run import verdicts
from loadgen.run.jobs import Job
from loadgen.studies import published_tables
from loadgen.studies.published_tables import (
    SATURATION,
    SCALING,
    PublishedModel,
    RequestShape,
    model_of,
    published_model_of,
)
from loadgen.studies.study import Study, numbered
from loadgen.traffic.schedule import PHASES, ArrivalSchedule, Ints

KIND = "progressive"
WARM_UP, BASELINE, STRESS = "warm-up", "baseline", "stress"
FEW, SINGLE = 3, 10
"""Requests of warm-up and baseline, one at a time (our choice)."""
SCALED, SATURATED = (1, 10, 25, 50, 100, 200), (150, 200, 300, 500, 750, 1000)
"""Concurrencies of a model that the paper lacks; those of saturation hold for all its models."""
STRESSED = 10
"""Concurrency of the stress phase (our choice)."""
LONG_PROMPT, LONG_ANSWER = 8192, 1000
"""Tokens of long context and long output (our choice)."""
BASELINE_LIMIT = 100
"""Tokens of the baseline's answers: those of Kimi-K2.5's row at 1, and half of scaling's, because only then
can Llama's 6.15 s at 5 be more than twice the baseline (inferred)."""
NOMINAL_PROMPT, NOMINAL_TEXT, NOMINAL_LIMIT = 500, 100, 200
"""Tokens of a text prompt, of the text beside an image, and of answers (tables 10 and 14 to 17)."""
TEXT_SATURATION_LIMIT = 100
"""Tokens of answers to text in saturation (table 22)."""
ENDS = (summary.EXIT_OK, summary.EXIT_SLO_MISSED, summary.EXIT_VOID)
"""Exit codes of a run after which the next one begins: its figures stand, with their cautions."""

Verdict = TypeVar("Verdict", PredictionVerdict, RunVerdict, StudyVerdict)


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """A closed loop of requests, up to `concurrency` of them in flight; `shape` names what is unusual about
    them.

    `answers` are the tokens of each answer in order. `prompt_tokens` include `image_tokens`. With `same`, all
    prompts are equal.
    """

    phase: str
    concurrency: int
    prompt_tokens: int
    answers: Ints
    image_tokens: int = 0
    shape: str = ""
    same: bool = True
    published: PublishedLevel | None = None

    @property
    def requests(self) -> int:
        return len(self.answers)

    @property
    def in_flight(self) -> int:
        """Requests that can be in flight at once; a burst may have fewer than its concurrency."""
        return min(self.concurrency, self.requests)

    def schedule(self, number: int, start_ns: int, first_seq: int) -> ArrivalSchedule:
        """The level as a closed loop, window `number`; all requests of a burst are in the window."""
        count = self.requests
        filling = np.arange(count) < (self.in_flight if self.in_flight < count else 0)
        lengths = np.full(count, self.prompt_tokens)
        return ArrivalSchedule(
            window_index=number,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=np.full(count, start_ns, dtype=np.int64),
            phase=np.where(filling, PHASES.index("transition"), PHASES.index("window")),
            input_tokens=lengths,
            output_tokens=self.answers,
            shared_tokens=lengths if self.same else np.zeros_like(lengths),
            concurrency=self.in_flight,
            image_tokens=np.full(count, self.image_tokens) if self.image_tokens else None,
        )


def request_shape(experiment: Experiment) -> RequestShape:
    """The lengths of requests: the workload's, those of the paper's model, or nominal ones."""
    model, workload = experiment.model, experiment.workload
    if experiment.progressive.lengths == "workload":
        answer, images = workload.output_tokens.mean, round(workload.images.mean_tokens)
        limits = {SCALING: answer, SATURATION: answer}
        return RequestShape(prompt=workload.input_tokens.mean + images, limits=limits, image_tokens=images)
    if published := model_of(experiment):
        return published
    if model.image_token_px:
        images = tokens_of(Images().width_px, Images().height_px, model.image_token_px)
        limits = {SCALING: NOMINAL_LIMIT, SATURATION: NOMINAL_LIMIT}
        return RequestShape(prompt=NOMINAL_TEXT + images, limits=limits, image_tokens=images)
    limits = {SCALING: NOMINAL_LIMIT, SATURATION: TEXT_SATURATION_LIMIT}
    return RequestShape(prompt=NOMINAL_PROMPT, limits=limits)


def levels(experiment: Experiment) -> list[LevelPlan]:
    """All levels in order."""
    it, shape, subject = experiment.progressive, request_shape(experiment), published_model_of(experiment)
    played = published_tables.played(shape) if isinstance(shape, PublishedModel) else []
    rows = {(row.phase, row.concurrency): row for row in played}
    usual, burst_limit = shape.limits[SCALING], shape.limits[SATURATION]
    short, images = min(BASELINE_LIMIT, usual), shape.image_tokens
    mixed = partial(published_tables.mixed_answers, shape)
    one = LevelPlan("", 1, shape.prompt, mixed(1, usual), images, same=it.prompts == "same")
    level = partial(replace, one)

    def loaded(phase: str, concurrency: int, limit: int) -> LevelPlan:
        row, count = rows.get((phase, concurrency)), it.requests_per_user * concurrency
        count = count or _times(it, published_tables.requests(concurrency, burst=phase == SATURATION))
        answers = published_tables.outputs(shape, row, count) if row else mixed(count, limit)
        beside = row.level if subject and row else None
        return level(phase=phase, concurrency=concurrency, answers=answers, published=beside)

    few = _times(it, published_tables.requests(STRESSED, burst=False))
    stressed = partial(level, phase=STRESS, concurrency=STRESSED, answers=mixed(few, usual))
    more, name = (MOST_IMAGES - 1) * images, f"{MOST_IMAGES} images"
    many = stressed(shape=name, prompt_tokens=shape.prompt + more, image_tokens=images + more)
    return [
        level(phase=WARM_UP, answers=mixed(_times(it, FEW), short)),
        level(phase=BASELINE, answers=mixed(_times(it, SINGLE), short)),
        *(loaded(SCALING, c, usual) for c in [c for phase, c in rows if phase == SCALING] or SCALED),
        stressed(shape="long context", prompt_tokens=max(LONG_PROMPT, shape.prompt)),
        stressed(shape="long output", answers=mixed(few, max(LONG_ANSWER, usual))),
        *([many] if images else []),
        *(loaded(SATURATION, c, burst_limit) for c in SATURATED),
    ]


def _times(progressive: Progressive, count: int) -> int:
    return max(1, math.ceil(progressive.multiplier * count))


def workload(experiment: Experiment) -> Workload:
    """The workload of the bodies of all levels; each level has its own lengths."""
    shape, old = request_shape(experiment), experiment.workload
    if experiment.progressive.lengths == "workload":
        return old
    text = Lengths(shape.prompt - shape.image_tokens), Lengths(shape.limits[SCALING])
    if not shape.image_tokens:
        return Workload("progressive", *text, old.prompt, tokenizer=old.tokenizer)
    size = Images().width_px, Images().height_px
    images = Images(1, 1, *size, experiment.progressive.prompts != "same", shape.image_tokens)
    return Workload("progressive", *text, "chat", images=images, tokenizer=old.tokenizer)


def longest(experiment: Experiment) -> Experiment:
    """The experiment with the longest request of any level as its workload, to check that it fits."""
    most = max(level.prompt_tokens + int(level.answers.max()) for level in levels(experiment))
    return replace(experiment, workload=Workload("longest", Lengths(most - 1), Lengths(1)))


def is_virtual(experiment: Experiment) -> bool:
    """True if the engine model answers alone."""
    return experiment.engine.kind == "simulated" and experiment.progressive.clock != "wall"


def play(
    experiment: Experiment, play_level: Callable[[int, LevelPlan], pa.Table], say: Callable[[str], None]
) -> list[LevelFigures]:
    """The figures of one run: every level in order, with a progress line for each.

    `play_level` plays the level of a number, and returns the rows of all its requests.
    """
    run = []
    for number, level in enumerate(levels(experiment)):
        run.append(played := judged.figures(play_level(number, level)))
        shape = f" ({level.shape})" if level.shape else ""
        say(
            f"{level.phase}{shape}, C = {level.concurrency}: {played.requests} requests in "
            f"{played.seconds:.1f} s, {played.total_tok_s:.0f} tok/s, p99 {played.p99_s:.2f} s"
        )
    return run


class LadderStudy(Study):
    """`progressive.runs` runs of the benchmark; one that was cut short is run anew."""

    kind = verb = KIND
    anew = True
    ends = ENDS

    def __init__(self, experiment: Experiment) -> None:
        super().__init__(experiment, numbered(experiment, "run", experiment.progressive.runs))

    def job(self, name: str, experiment: Experiment) -> Job:
        return PlayLadder(experiment)

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        """The verdict of all runs together; a level is void where it was in any of them."""
        played = [part.progressive for part in parts.values() if part.progressive]
        levels_by_run = [enumerate(each.levels) for each in reversed(played)]
        void = {number: line.void for lines in levels_by_run for number, line in lines if line.void}
        evidence = f"{len(played)} runs, each of a service deployed anew"
        verdict = replace(verdict, windows=(), evidence=evidence, remedy="")
        return concluded(verdict, self.experiment, [each.figures[0] for each in played], void)


class PlayLadder(Job):
    """One run: every level in order, on a service that only the first phase warms up."""

    verb = KIND

    def load(self, driver: Driver) -> None:
        driver.replan(warmup_requests=0)
        warm_up(driver)
        play(self.experiment, partial(_offered, driver), lambda line: driver.emit("level", text=line))
        driver.drain()

    def verdict(self, driver: Driver) -> RunVerdict:
        windows = driver.windows
        figures = [judged.figures(windows.ledger.rows(number)) for number in range(len(windows.outcomes))]
        judgements = [(window.index, window.verdict) for window in windows.outcomes]
        void = {number: verdict.reason for number, verdict in judgements if not verdict.valid}
        evidence = f"{len(windows.outcomes)} closed loops in {driver.elapsed_s():.0f} s"
        verdict = replace(verdicts.seen_verdict(self.experiment, driver, evidence), clock="wall")
        return concluded(verdict, self.experiment, [figures], void)


def _offered(driver: Driver, number: int, level: LevelPlan) -> pa.Table:
    start_ns = driver.feed.next_start_ns()
    schedule = level.schedule(number, start_ns, driver.feed.next_seq)
    why = f"{level.phase}, C = {level.concurrency}"
    programs.play_closed_loop(driver, schedule, start_ns, why, to_the_end=True)
    rows = driver.windows.ledger.rows(number)
    if level.phase == WARM_UP:
        refuse_failing(rows)
    return rows


def concluded(
    verdict: Verdict,
    experiment: Experiment,
    runs: Sequence[Sequence[LevelFigures]],
    void: Mapping[int, str] | None = None,
) -> Verdict:
    """The verdict with the ladder of all runs; `void` maps void levels to their reasons."""
    ladder, void = figures(experiment, runs, void), void or {}
    failing = sum(line.status == "FAILING" for line in ladder.levels)
    code, reason = summary.EXIT_OK, ""
    if void:
        first = next(iter(void.values()))
        why = f"{len(void)} of {len(ladder.levels)} levels are void, the first for {first}"
        code, reason = summary.EXIT_VOID, why
    elif failing:
        why = f"{failing} levels are FAILING: under 95 % of their requests succeeded"
        code, reason = summary.EXIT_SLO_MISSED, why
    passed = code == summary.EXIT_OK
    return replace(verdict, progressive=ladder, valid=not void, passed=passed, exit_code=code, reason=reason)


def figures(
    experiment: Experiment, runs: Sequence[Sequence[LevelFigures]], void: Mapping[int, str] | None = None
) -> LadderFigures:
    """The figures of all runs; each level is compared with the previous one of its phase."""
    progressive, subject, plans = experiment.progressive, published_model_of(experiment), levels(experiment)
    number = next(number for number, level in enumerate(plans) if level.phase == BASELINE)
    baseline_p99_s = float(np.mean([run[number].p99_s for run in runs]))
    lines: list[LadderLevel] = []
    for number, level in enumerate(plans):
        follows = bool(lines) and lines[-1].phase == level.phase and level.phase != STRESS
        before = lines[-1].total_tok_s if follows else None
        line = judged.row(level, [run[number] for run in runs], baseline_p99_s, before)
        lines.append(replace(line, void=(void or {}).get(number, "")))
    fit = judged.rms(lines) if progressive.as_published and not void else None
    return LadderFigures(
        profile=progressive.profile,
        requests_per_user=progressive.requests_per_user,
        prompts=progressive.prompts,
        lengths=progressive.lengths,
        runs=len(runs),
        clock=_clock(experiment),
        as_published=progressive.as_published,
        caution="; ".join(filter(None, [_caution(experiment), *kernels.kernel_lines(experiment)])),
        how=_settings(experiment, len(runs)),
        levels=tuple(lines),
        figures=tuple(map(tuple, runs)),
        rms=fit,
        fit_rms=subject.fit_rms if subject and fit is not None else None,
        source=published_tables.SOURCE,
    )


def _caution(experiment: Experiment) -> str:
    """The reason why no published rows stand beside a model, or why its constants need one prompt."""
    own = model_of(experiment)
    if own and not published_model_of(experiment):
        shape = f"MI325X, {' and '.join(own.words[:2])} and lengths of its own"
        return f"the paper's rows are of {shape}; nothing stands beside these"
    spread = experiment.model.step_time.expert_spread
    if experiment.progressive.prompts == "same" or experiment.engine.kind != "simulated" or spread.value == 1:
        return ""
    return (
        f"unique prompts choose their experts independently, but expert_spread is {spread.value:g}, fitted "
        "to one prompt: set model.step_time.expert_spread.value=1"
    )


def _clock(experiment: Experiment) -> str:
    return "virtual" if is_virtual(experiment) else "wall"


def _settings(experiment: Experiment, runs: int) -> str:
    """The benchmark's settings in one line."""
    progressive, clock = experiment.progressive, _clock(experiment)
    times = "" if progressive.profile == "default" else f" x {progressive.multiplier:g}"
    counts = f"the paper's request counts{times}"
    if progressive.requests_per_user:
        counts = f"{progressive.requests_per_user} requests for each one in flight"
    prompts = "one prompt for all requests" if progressive.prompts == "same" else "unique prompts"
    return f"{counts}, {prompts}, {runs} run(s) on the {clock} clock, {published_tables.SOURCE}"


def plan_lines(experiment: Experiment, seconds: Sequence[float] | None) -> list[str]:
    """The plan, a line for each level; `seconds` are the engine model's times of the levels."""
    plans, progressive = levels(experiment), experiment.progressive
    lines = [f"# {experiment.model.name}: {_settings(experiment, progressive.runs)}"]
    lines += [f"# {line}" for line in kernels.kernel_lines(experiment)]
    for number, level in enumerate(plans):
        images = f" ({level.image_tokens} of them image)" if level.image_tokens else ""
        shape = f" {level.shape}:" if level.shape else ""
        took = f", {seconds[number]:.0f} s" if seconds else ""
        lines.append(
            f"# {level.phase}:{shape} {level.requests} requests, {level.in_flight} in flight (C = "
            f"{level.concurrency}), {level.prompt_tokens}{images} + {level.answers.mean():.5g} tokens{took}"
        )
    total = sum(level.requests for level in plans)
    lasts = f", {sum(seconds):.0f} s by the engine model" if seconds else ", as long as the service takes"
    return [*lines, f"# {total} requests a run{lasts}; {progressive.runs} run(s)"]
