"""The MI325X paper's benchmark: its five phases as levels of a closed loop, and what they come to.

Knows how many requests of which lengths each level sends; whoever plays a level, the engine model or an
HTTP service, is handed in. The counts of scaling and saturation are those that the paper's figures imply (the
engine model, section 4). Of the other phases only the purpose is published (docs.vultr.com, the Inference
Cookbook's Benchmarking Guide: a single request; p99 at concurrency 1; long context, long output, several
images), so that their counts and lengths are our choice.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.results import published_ladder as judged
from analysis.results import summary
from analysis.results.asked import describe
from analysis.results.json_border import to_tree
from analysis.results.published_ladder import LadderAnswer
from analysis.results.types.ladder_figures import LadderFigures, LadderLevel, LevelFigures, PublishedLevel
from analysis.results.types.prediction_verdict import PredictionVerdict
from conf import ConfigError, Experiment, kernels
from conf.specs.experiment import Lengths, Workload
from conf.specs.images import MOST_IMAGES, Images, tokens_of
from conf.specs.published_ladder import Progressive
from loadgen.run import export
from loadgen.studies import published_tables
from loadgen.studies.paper_models import model_of, subject_of
from loadgen.studies.published_tables import SATURATION, SCALING, Row, Shape, Subject
from loadgen.traffic.lengths import Ints
from loadgen.traffic.schedule import PHASES, ArrivalSchedule

WARM_UP, BASELINE, STRESS = "warm-up", "baseline", "stress"
FEW, SINGLE = 3, 10
"""Requests of warm-up and baseline, one at a time (our choice)."""
SCALED, SATURATED = (1, 10, 25, 50, 100, 200), (150, 200, 300, 500, 750, 1000)
"""Concurrencies of a model that is not the paper's; those of saturation are all its models'."""
STRESSED = 10
"""Concurrency of the stress phase (our choice)."""
LONG_PROMPT, LONG_ANSWER = 8192, 1000
"""Tokens of long context and long output (our choice)."""
BASELINE_LIMIT = 100
"""Tokens of the baseline's answers: those of Kimi-K2.5's row at 1, and half of what scaling asks, for only so
can Llama's 6.15 s at 5 be more than twice the baseline (inferred)."""
NOMINAL_PROMPT, NOMINAL_TEXT, NOMINAL_LIMIT = 500, 100, 200
"""Tokens of a text prompt, of the text beside an image, and of answers (tables 10 and 14 to 17)."""
TEXT_SATURATION_LIMIT = 100
"""The same of answers to text in saturation (table 22)."""

Play = Callable[[int, "Level"], pa.Table]
"""Plays a level of a number, and returns the rows of all its requests."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Level:
    """So many requests, up to `concurrency` of them in flight; `shape` is what is unusual about them.

    `answers` are the tokens of each answer in order. Of `prompt_tokens`, `image_tokens` are those of images.
    `same` prompts are one and the same.
    """

    phase: str
    concurrency: int
    prompt_tokens: int
    answers: Ints
    image_tokens: int = 0
    shape: str = ""
    same: bool = True
    published: Row | None = None

    @property
    def requests(self) -> int:
        return len(self.answers)

    @property
    def in_flight(self) -> int:
        """As many as can be in flight at once, whatever the concurrency is called."""
        return min(self.concurrency, self.requests)

    def schedule(self, number: int, start_ns: int, first_seq: int) -> ArrivalSchedule:
        """The level as a closed loop, segment `number`; of a burst all requests are in the window."""
        count = self.requests
        filling = np.arange(count) < (self.in_flight if self.in_flight < count else 0)
        lengths = np.full(count, self.prompt_tokens)
        return ArrivalSchedule(
            dwell=number,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=np.full(count, start_ns, dtype=np.int64),
            phase=np.where(filling, PHASES.index("transition"), PHASES.index("window")),
            input_tokens=lengths,
            output_tokens=self.answers,
            shared_tokens=lengths if self.same else np.zeros_like(lengths),
            concurrency=self.in_flight,
            image_tokens=np.full(count, self.image_tokens) if self.image_tokens else None,
        )


def asked_shape(experiment: Experiment) -> Shape:
    """How requests look: the workload's, the paper's of its own model, or its nominal lengths."""
    model = experiment.model
    if experiment.progressive.lengths == "workload":
        return _shaped(experiment.workload)
    if known := model_of(experiment):
        return known
    if model.image_token_px:
        images = tokens_of(Images().width_px, Images().height_px, model.image_token_px)
        limits = {SCALING: NOMINAL_LIMIT, SATURATION: NOMINAL_LIMIT}
        return Shape(prompt=NOMINAL_TEXT + images, limits=limits, image_tokens=images)
    limits = {SCALING: NOMINAL_LIMIT, SATURATION: TEXT_SATURATION_LIMIT}
    return Shape(prompt=NOMINAL_PROMPT, limits=limits)


def _shaped(workload: Workload) -> Shape:
    answer, images = workload.output_tokens.mean, round(workload.images.mean_tokens)
    limits = {SCALING: answer, SATURATION: answer}
    return Shape(prompt=workload.input_tokens.mean + images, limits=limits, image_tokens=images)


def levels(experiment: Experiment) -> list[Level]:
    """Every level in order."""
    return list(_levels(experiment.progressive, asked_shape(experiment), subject_of(experiment)))


def _levels(it: Progressive, shape: Shape, subject: Subject | None) -> Iterator[Level]:
    known = published_tables.played(shape) if isinstance(shape, Subject) else []
    rows = {(row.burst, row.concurrency): row for row in known}
    usual, burst_limit = shape.limits[SCALING], shape.limits[SATURATION]
    short = min(BASELINE_LIMIT, usual)
    one = Level("", 1, shape.prompt, _mixed(shape, 1, usual), shape.image_tokens, same=it.prompts == "same")
    level = partial(replace, one)

    def loaded(phase: str, concurrency: int, limit: int) -> Level:
        row = rows.get((phase == SATURATION, concurrency))
        count = _counted(it, concurrency, burst=phase == SATURATION)
        answers = published_tables.outputs(shape, row, count) if row else _mixed(shape, count, limit)
        beside = row if subject else None
        return level(phase=phase, concurrency=concurrency, answers=answers, published=beside)

    yield level(phase=WARM_UP, answers=_mixed(shape, _times(it, FEW), short))
    yield level(phase=BASELINE, answers=_mixed(shape, _times(it, SINGLE), short))
    for concurrency in [c for burst, c in rows if not burst] or SCALED:
        yield loaded(SCALING, concurrency, usual)
    few = _times(it, published_tables.requests(STRESSED, burst=False))
    stressed = partial(level, phase=STRESS, concurrency=STRESSED, answers=_mixed(shape, few, usual))
    yield stressed(shape="long context", prompt_tokens=max(LONG_PROMPT, shape.prompt))
    yield stressed(shape="long output", answers=_mixed(shape, few, max(LONG_ANSWER, usual)))
    if shape.image_tokens:
        more = (MOST_IMAGES - 1) * shape.image_tokens
        prompt, images = shape.prompt + more, shape.image_tokens + more
        yield stressed(shape=f"{MOST_IMAGES} images", prompt_tokens=prompt, image_tokens=images)
    for concurrency in SATURATED:
        yield loaded(SATURATION, concurrency, burst_limit)


def _mixed(shape: Shape, count: int, limit: int) -> Ints:
    """Answers to the limit in the model's own share; the others end at once."""
    mean = shape.whole * limit + (1 - shape.whole) * published_tables.EARLY_TOKENS
    return published_tables.spread(count, limit, mean, shape.whole)


def _times(it: Progressive, count: int) -> int:
    """So many by the profile, at least one."""
    return max(1, math.ceil(it.multiplier * count))


def _counted(it: Progressive, concurrency: int, *, burst: bool) -> int:
    if it.requests_per_user:
        return it.requests_per_user * concurrency
    return _times(it, published_tables.requests(concurrency, burst))


def workload(experiment: Experiment) -> Workload:
    """What the bodies of all levels are made of; their lengths are those of each level."""
    shape, old = asked_shape(experiment), experiment.workload
    if experiment.progressive.lengths == "workload":
        return old
    text = Lengths(shape.prompt - shape.image_tokens), Lengths(shape.limits[SCALING])
    if not shape.image_tokens:
        return Workload("progressive", *text, old.prompt, tokenizer=old.tokenizer)
    side = Images().width_px, Images().height_px
    same = experiment.progressive.prompts == "same"
    images = Images(1, 1, *side, not same, shape.image_tokens)
    return Workload("progressive", *text, "chat", images=images, tokenizer=old.tokenizer)


def ready(experiment: Experiment) -> Experiment:
    """The experiment with the workload of its levels. Raises ConfigError for what no level would honour."""
    it, asked = experiment.progressive, experiment.workload
    if it.lengths == "workload" and {asked.input_tokens.kind, asked.output_tokens.kind} != {"fixed"}:
        raise ConfigError("progressive.lengths=workload needs fixed lengths; choose another workload")
    if asked.has_sessions or experiment.streams:
        raise ConfigError(
            "progressive is one closed loop without sessions; choose another workload or routing"
        )
    if experiment.fleet.actors > 1:
        raise ConfigError(
            f"progressive begins with one request at a time, which fleet.actors={experiment.fleet.actors} "
            "cannot share; leave it at 1"
        )
    if experiment.time_scale != 1:
        raise ConfigError("progressive is a closed loop: leave engine.time_scale out")
    return replace(experiment, workload=workload(experiment))


def longest(experiment: Experiment) -> Experiment:
    """The experiment with the longest request of any level as its workload, to see whether that fits."""
    most = max(level.prompt_tokens + int(level.answers.max()) for level in levels(experiment))
    lengths = Lengths(most - 1), Lengths(1)
    return replace(experiment, workload=Workload("longest", *lengths))


def is_virtual(experiment: Experiment) -> bool:
    """Whether the engine model answers alone. Raises ConfigError where it cannot."""
    clock, simulated = experiment.progressive.clock, experiment.engine.kind == "simulated"
    if clock == "virtual" and not simulated:
        raise ConfigError(f"progressive.clock=virtual needs engine=simulated, not {experiment.engine.kind}")
    virtual = simulated and clock != "wall"
    if virtual and experiment.replicas != 1:
        raise ConfigError(
            f"progressive on the virtual clock measures one replica, not {experiment.replicas}; use "
            "layout=dp1_tp8, or progressive.clock=wall"
        )
    return virtual


def drawn_seed(seed: int, number: int) -> int:
    """The seed of a run, or of a level within one."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def climb(asked: Sequence[Level], play: Play, say: Say) -> list[LevelFigures]:
    """One run: every level played in order, and told."""
    found = []
    for number, level in enumerate(asked):
        found.append(judged.figures(play(number, level)))
        say(told(level, found[-1]))
    return found


def told(level: Level, at: LevelFigures) -> str:
    """A level that was played, in a line of progress."""
    shape = f" ({level.shape})" if level.shape else ""
    return (
        f"{level.phase}{shape}, C = {level.concurrency}: {at.requests} requests in {at.seconds:.1f} s, "
        f"{at.total_tok_s:.0f} tok/s, p99 {at.p99_s:.2f} s"
    )


def lines(
    asked: Sequence[Level], runs: Sequence[Sequence[LevelFigures]], subject: Subject | None
) -> list[LadderLevel]:
    """The table of all runs; each level is compared with the one before it in its phase."""
    baseline = next(i for i, level in enumerate(asked) if level.phase == BASELINE)
    baseline_p99_s = float(np.mean([run[baseline].p99_s for run in runs]))
    out: list[LadderLevel] = []
    for number, level in enumerate(asked):
        follows = bool(out) and out[-1].phase == level.phase and level.phase != STRESS
        before = out[-1].total_tok_s if follows else None
        line = judged.row(level, [run[number] for run in runs], baseline_p99_s, before)
        out.append(_beside(line, level.published, subject) if level.published and subject else line)
    return out


def _beside(line: LadderLevel, row: Row, subject: Subject) -> LadderLevel:
    left_out = subject.left_out.get((row.table, row.concurrency), "")
    figures = row.total_tok_s, row.output_tok_s, row.p99_s
    return judged.compared(line, PublishedLevel(row.table, *figures, row.status, left_out))


def figures(
    experiment: Experiment,
    runs: Sequence[Sequence[LevelFigures]],
    clock: str,
    void: Mapping[int, str] | None = None,
) -> LadderFigures:
    """All runs together; `void` are the levels that say nothing, and why."""
    it, subject, void = experiment.progressive, subject_of(experiment), void or {}
    played = lines(levels(experiment), runs, subject)
    found = tuple(replace(line, void=void.get(number, "")) for number, line in enumerate(played))
    fit = judged.rms(found) if it.as_published and not void else None
    return LadderFigures(
        profile=it.profile,
        requests_per_user=it.requests_per_user,
        prompts=it.prompts,
        lengths=it.lengths,
        runs=len(runs),
        clock=clock,
        as_published=it.as_published,
        caution="; ".join(filter(None, [_caution(experiment), *kernels.words(experiment)])),
        how=how(it, len(runs), clock),
        levels=found,
        figures=tuple(map(tuple, runs)),
        rms=fit,
        fit_rms=subject.fit_rms if subject and fit is not None else None,
        source=published_tables.SOURCE,
    )


def predicted(experiment: Experiment, runs: Sequence[Sequence[LevelFigures]]) -> PredictionVerdict:
    """The verdict of runs on the virtual clock."""
    return PredictionVerdict(asked=describe(experiment), **ending(figures(experiment, runs, "virtual"), {}))


def _caution(experiment: Experiment) -> str:
    """Why nothing stands beside a model of the paper, or what unique prompts would have to change in
    constants that were fitted to one prompt.
    """
    own = model_of(experiment)
    if own and experiment.progressive.lengths == "workload":
        return "the lengths are the workload's, not the paper's; nothing stands beside these"
    if own and not subject_of(experiment):
        return f"the paper's rows are of MI325X, {' and '.join(own.words[:2])}; nothing stands beside these"
    spread = experiment.model.step_time.expert_spread
    if experiment.progressive.prompts == "same" or experiment.engine.kind != "simulated" or spread.value == 1:
        return ""
    return (
        f"unique prompts choose their experts independently, but expert_spread is {spread.value:g}, fitted "
        "to one prompt: set model.step_time.expert_spread.value=1"
    )


def ending(found: LadderFigures, void: Mapping[int, str]) -> dict[str, Any]:
    """The fields of a verdict that the ladder decides: the ladder itself, the exit code and its reason."""
    code, reason = _exit(found.levels, void)
    passed = code == summary.EXIT_OK
    return {"progressive": found, "valid": not void, "passed": passed, "exit_code": code, "reason": reason}


def _exit(found: Sequence[LadderLevel], void: Mapping[int, str]) -> tuple[int, str]:
    if void:
        first = next(iter(void.values()))
        return summary.EXIT_VOID, f"{len(void)} of {len(found)} levels are void, the first for {first}"
    failing = sum(line.status == "FAILING" for line in found)
    if failing:
        return (
            summary.EXIT_SLO_MISSED,
            f"{failing} levels are FAILING: under 95 % of their requests succeeded",
        )
    return summary.EXIT_OK, ""


def how(it: Progressive, runs: int, clock: str) -> str:
    """What was run, in a line."""
    if it.requests_per_user:
        counts = f"{it.requests_per_user} requests for each one in flight"
    else:
        counts = f"the paper's request counts{'' if it.profile == 'default' else f' x {it.multiplier:g}'}"
    prompts = "one prompt for all requests" if it.prompts == "same" else "unique prompts"
    return f"{counts}, {prompts}, {runs} run(s) on the {clock} clock, {published_tables.SOURCE}"


def whole(verdicts: Sequence[LadderAnswer]) -> dict[str, Any]:
    """The answers of several models as JSON, with the highest of their exit codes."""
    code = max(one.exit_code or 0 for one in verdicts)
    return {"event": "result", "exit_code": code, "models": [to_tree(one) for one in verdicts]}


def write(out: Path | None, verdicts: Sequence[LadderAnswer]) -> None:
    """Write the levels of several models as the suffix of `out`, if any, says."""
    if out is not None:
        export.write(out, judged.rows(verdicts), whole(verdicts))


def plan(experiment: Experiment, seconds: Sequence[float] | None) -> list[str]:
    """What would be done, a line for each level; `seconds` are what the engine model expects of each."""
    asked, it = levels(experiment), experiment.progressive
    out = [f"# {experiment.model.name}: {how(it, it.runs, 'virtual' if is_virtual(experiment) else 'wall')}"]
    out += [f"# {line}" for line in kernels.words(experiment)]
    for number, level in enumerate(asked):
        images = f" ({level.image_tokens} of them image)" if level.image_tokens else ""
        shape = f" {level.shape}:" if level.shape else ""
        took = f", {seconds[number]:.0f} s" if seconds else ""
        out.append(
            f"# {level.phase}:{shape} {level.requests} requests, {level.in_flight} in flight (C = "
            f"{level.concurrency}), {level.prompt_tokens}{images} + {level.answers.mean():.5g} tokens{took}"
        )
    total = sum(level.requests for level in asked)
    lasts = f", {sum(seconds):.0f} s by the engine model" if seconds else ", as long as the service takes"
    return [*out, f"# {total} requests a run{lasts}; {it.runs} run(s)"]
