"""How an example prompt of real text begins, for people to read; knows nothing of what is sent."""

import json
from dataclasses import replace
from textwrap import shorten

from conf import Experiment
from conf.specs.conversation import PART_NAMES, Conversations
from conf.specs.images import Images
from loadgen.prompts.bodies import Prompts

MOST_LETTERS = 90


def lines(experiment: Experiment) -> list[str]:
    """The text of each level of a prompt, or of a whole one; none where prompts are synthetic.

    Every run draws its own. Raises ConfigError where the tokenizer cannot be used.
    """
    workload = experiment.workload
    if not workload.tokenizer:
        return []
    plain = replace(workload, prompt="text", images=Images())
    prompts = Prompts(plain, "", experiment.model.vocab, experiment.seed)
    told = f"# its text, encoded by {workload.tokenizer}, begins:"
    if talks := workload.conversations:
        return [told, *(f"#   {name:<10} {_begin(text)}" for name, text in _levels(prompts, talks))]
    body = prompts.body(0, max(1, round(workload.input_tokens.mean)), 1)
    return [told.replace("its text", "an example prompt"), f"#   {_begin(json.loads(body)['prompt'])}"]


def _levels(prompts: Prompts, talks: Conversations) -> list[tuple[str, str]]:
    """The levels of a conversation, their text by their names; the message is the end of the history."""
    means = talks.system_tokens, talks.system_tokens + talks.character_tokens.mean, talks.persona_tokens.mean
    found = prompts.levels(talks.max_prompt_tokens, means, (0, 0, 0))
    texts = (json.loads(b'"' + b"".join(level) + b'"') for level in found)
    return list(zip(PART_NAMES[: len(found)], texts, strict=True))


def _begin(text: str) -> str:
    return shorten(text, MOST_LETTERS, placeholder=" ...")
