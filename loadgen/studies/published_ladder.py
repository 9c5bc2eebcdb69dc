"""The MI325X paper's benchmark: its five phases as levels of a closed loop.

The counts of scaling and saturation are those that the paper's figures imply (docs/engine_checks.md). Of the
other phases only the purpose is published (docs.vultr.com, the Inference Cookbook's Benchmarking Guide: a
single request; p99 at concurrency 1; long context, long output, several images), so their counts and lengths
are our choice.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from conf import ConfigError, Experiment
from conf.specs.experiment import Lengths, Workload
from conf.specs.images import MOST_IMAGES, Images, tokens_of
from conf.specs.published_ladder import Progressive
from loadgen.studies import published_tables
from loadgen.studies.published_tables import (
    SATURATION,
    SCALING,
    PublishedModel,
    PublishedRow,
    RequestShape,
    model_of,
    published_model_of,
)
from loadgen.traffic.lengths import Ints
from loadgen.traffic.schedule import PHASES, ArrivalSchedule

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
    published: PublishedRow | None = None

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


def asked_shape(experiment: Experiment) -> RequestShape:
    """The lengths of requests: the workload's, those of the paper's model, or nominal ones."""
    model = experiment.model
    if experiment.progressive.lengths == "workload":
        return _shaped(experiment.workload)
    if published := model_of(experiment):
        return published
    if model.image_token_px:
        images = tokens_of(Images().width_px, Images().height_px, model.image_token_px)
        limits = {SCALING: NOMINAL_LIMIT, SATURATION: NOMINAL_LIMIT}
        return RequestShape(prompt=NOMINAL_TEXT + images, limits=limits, image_tokens=images)
    limits = {SCALING: NOMINAL_LIMIT, SATURATION: TEXT_SATURATION_LIMIT}
    return RequestShape(prompt=NOMINAL_PROMPT, limits=limits)


def _shaped(workload: Workload) -> RequestShape:
    answer, images = workload.output_tokens.mean, round(workload.images.mean_tokens)
    limits = {SCALING: answer, SATURATION: answer}
    return RequestShape(prompt=workload.input_tokens.mean + images, limits=limits, image_tokens=images)


def levels(experiment: Experiment) -> list[LevelPlan]:
    """All levels in order."""
    return list(_levels(experiment.progressive, asked_shape(experiment), published_model_of(experiment)))


def _levels(it: Progressive, shape: RequestShape, subject: PublishedModel | None) -> Iterator[LevelPlan]:
    known = published_tables.played(shape) if isinstance(shape, PublishedModel) else []
    rows = {(row.burst, row.concurrency): row for row in known}
    usual, burst_limit = shape.limits[SCALING], shape.limits[SATURATION]
    short = min(BASELINE_LIMIT, usual)
    one = LevelPlan(
        "", 1, shape.prompt, _mixed(shape, 1, usual), shape.image_tokens, same=it.prompts == "same"
    )
    level = partial(replace, one)

    def loaded(phase: str, concurrency: int, limit: int) -> LevelPlan:
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


def _mixed(shape: RequestShape, count: int, limit: int) -> Ints:
    """Answers to the limit in the model's own share; the others end at once."""
    mean = shape.whole * limit + (1 - shape.whole) * published_tables.EARLY_TOKENS
    return published_tables.spread(count, limit, mean, shape.whole)


def _times(it: Progressive, count: int) -> int:
    return max(1, math.ceil(it.multiplier * count))


def _counted(it: Progressive, concurrency: int, *, burst: bool) -> int:
    if it.requests_per_user:
        return it.requests_per_user * concurrency
    return _times(it, published_tables.requests(concurrency, burst))


def workload(experiment: Experiment) -> Workload:
    """The workload of the bodies of all levels; each level has its own lengths."""
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


def with_level_workload(experiment: Experiment) -> Experiment:
    """The experiment with the workload of its levels. Raises ConfigError for settings without effect."""
    it, workload_asked = experiment.progressive, experiment.workload
    if it.lengths == "workload" and {workload_asked.input_tokens.kind, workload_asked.output_tokens.kind} != {
        "fixed"
    }:
        raise ConfigError("progressive.lengths=workload needs fixed lengths; choose another workload")
    if workload_asked.has_sessions or experiment.streams:
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
    """The experiment with the longest request of any level as its workload, to check that it fits."""
    most = max(level.prompt_tokens + int(level.answers.max()) for level in levels(experiment))
    lengths = Lengths(most - 1), Lengths(1)
    return replace(experiment, workload=Workload("longest", *lengths))


def is_virtual(experiment: Experiment) -> bool:
    """True if the engine model answers alone. Raises ConfigError if it cannot."""
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
    """The seed of a run, or of a level within a run."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
