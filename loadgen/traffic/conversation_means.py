"""Mean request of a conversation workload, computed without drawing any.

The population itself is in `population`.
"""

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from conf.specs.conversation import CHARACTER_SHARE, NAMING_TOKENS, Conversations
from conf.specs.experiment import Workload
from conf.specs.request_sizes import Lengths
from loadgen.traffic.lengths import cut_tokens
from loadgen.traffic.processes import Floats

LONGEST_LIVES = 30.0
"""A session longer than 30 mean sessions has probability 1e-13."""
QUANTILES = 100


@dataclass(frozen=True, slots=True)
class ConversationMeans:
    """The mean request; `reusable` is the share of its prompt that an unbounded prefix cache knows."""

    input_tokens: float
    output_tokens: float
    reusable: float


def means_of(spec: Conversations) -> ConversationMeans:
    """The mean over all messages of a stationary population.

    With a geometric number of turns, a message is the k-th (from 0) with probability p (1 - p)^k. Its history
    is taken at the mean: k messages with answers. The cut moves at another turn for every character length,
    so the mean is taken over quantiles of that length and nothing is rounded. Every character counts as
    known.
    """
    p = 1 / spec.turns
    turn = np.arange(int(LONGEST_LIVES * spec.turns) + 1)
    weight = p * (1 - p) ** turn / QUANTILES
    message, answer = spec.message_tokens.mean, spec.answer_tokens.mean
    history = turn * (message + answer) + message
    inputs = reused = 0.0
    for shared in _prompts(spec):
        fixed = shared + spec.persona_tokens.mean
        cut = cut_tokens(history, spec.max_prompt_tokens - fixed, spec.step_tokens)
        prompt = fixed + history - cut
        stays = np.diff(cut, prepend=-1) == 0
        again = np.where(stays, np.roll(prompt, 1), fixed)
        again[0] = shared
        inputs += float(weight @ prompt)
        reused += float(weight @ again)
    return ConversationMeans(inputs, float(answer), reused / inputs)


def resolve(workload: Workload) -> Workload:
    """The workload with the rounded mean lengths of its conversations."""
    if workload.conversations is None:
        return workload
    means_found = means_of(workload.conversations)
    means = round(means_found.input_tokens), round(means_found.output_tokens)
    inputs, outputs = (Lengths(mean, "conversation") for mean in means)
    return replace(workload, input_tokens=inputs, output_tokens=outputs)


def _prompts(spec: Conversations) -> Floats:
    """Tokens of system prompt and character, at quantiles of the character length."""
    lengths, room = spec.character_tokens, CHARACTER_SHARE * spec.max_prompt_tokens - spec.system_tokens
    normal = [NormalDist().inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)]
    variance = np.log1p(lengths.cv**2)
    drawn = lengths.mean * np.exp(np.sqrt(variance) * np.array(normal) - variance / 2)
    quantiles: Floats = spec.system_tokens + np.clip(drawn, NAMING_TOKENS, room)
    return quantiles
