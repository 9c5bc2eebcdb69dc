"""Prompts of the quality gate as token ids: slices of real text, the same for every side."""

import json
from dataclasses import replace

from conf import ConfigError, Experiment
from conf.specs.experiment import Workload
from conf.specs.images import Images
from loadgen.prompts.bodies import Prompts
from loadgen.traffic.lengths import UNIQUE_TOKENS

Prompt = tuple[int, ...]
"""Token ids of one prompt."""


def gate_prompts(experiment: Experiment) -> list[Prompt]:
    """The prompts in the order in which they are asked; the experiment's seed decides them."""
    build, quality = (
        Prompts(_plain(experiment.workload), "", experiment.model.vocab, experiment.seed),
        experiment.quality,
    )
    # The tokens that name a prompt are words without a sense: the text begins after them.
    tokens = quality.prompt_tokens + UNIQUE_TOKENS
    bodies = (build.body(number, tokens, 1) for number in range(quality.prompts))
    return [tuple(json.loads(body)["prompt"][UNIQUE_TOKENS:]) for body in bodies]


def refuse_synthetic(experiment: Experiment) -> None:
    """Raise ConfigError if a real model would get prompts of random tokens."""
    if experiment.engine.kind != "simulated" and not experiment.workload.tokenizer:
        raise ConfigError(
            "quality needs prompts of real text, because divergences on random tokens mean nothing: add "
            "workload.tokenizer=FOLDER of the model"
        )


def _plain(workload: Workload) -> Workload:
    """The workload whose prompts are plain text as token ids."""
    return replace(workload, prompt="token_ids", conversations=None, images=Images())
