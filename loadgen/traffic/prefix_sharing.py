"""Common beginnings of planned prompts, and what sessions mean for a service: pure figures of a schedule."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Workload
from conf.specs.request_sizes import Lengths
from conf.specs.workload import CHARACTER_SHARE, NAMING_TOKENS, Conversations
from loadgen.traffic.schedule import NS, UNIQUE_TOKENS, ArrivalSchedule, Floats, Ints, Run, cut_tokens


def begins(
    blocks: Sequence[Sequence[int]],
    block_tokens: int,
    lines: Ints,
    tokens: Ints,
    seq: Ints,
    stream: Ints | None = None,
) -> NDArray[np.object_]:
    """The `Runs` of every request, in order of arrival: those of its blocks that earlier prompts own.

    `lines` are those of a trace with these `blocks`. Neither two nodes' streams nor two rounds of a trace
    share beginnings.
    """
    result = np.empty(len(lines), dtype=object)
    # By stream: the last line, and of each block, by the one before it and its hash: number, owner, end.
    rounds: dict[int, tuple[int, dict[tuple[int, int], tuple[int, int, int]]]] = {}
    streams = [-1] * len(lines) if stream is None else stream.tolist()
    for i, (line, node) in enumerate(zip(lines.tolist(), streams, strict=True)):
        last, tree = rounds.get(node, (line, {}))
        tree = {} if line <= last else tree
        rounds[node] = line, tree
        own, length, runs = int(seq[i]), int(tokens[i]), list[Run]()
        below = 0
        for place, block in enumerate(blocks[line], 1):
            new = len(tree) + 1, own, min(place * block_tokens, length)
            below, owner, end = tree.setdefault((below, block), new)
            if owner == own:
                continue
            if runs and runs[-1][0] == owner:
                runs.pop()
            runs.append((owner, min(end, length)))
        result[i] = tuple(runs)
    return result


def reusable_tokens(begun: NDArray[np.object_]) -> Ints:
    """Tokens that an earlier prompt began with, by request."""
    return np.array([runs[-1][1] if runs else 0 for runs in begun], dtype=np.int64)


LONGEST_LIVES = 30.0
"""A session longer than 30 mean sessions has probability 1e-13."""
QUANTILES = 100


class ConversationMeans(NamedTuple):
    """The mean request; `reusable` is the share of its prompt that an unbounded prefix cache knows."""

    input_tokens: float
    output_tokens: float
    reusable: float


def means_of(spec: Conversations) -> ConversationMeans:
    """The mean over all messages of a stationary population.

    A message is the k-th (from 0) with probability p (1 - p)^k; its history is taken at the mean. The cut
    moves at another turn for every character length, so the mean is over quantiles of that length.
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


def with_mean_lengths(workload: Workload) -> Workload:
    """The workload with the rounded mean lengths of its conversations."""
    if workload.conversations is None:
        return workload
    *means, _ = means_of(workload.conversations)
    inputs, outputs = (Lengths(round(mean), "conversation") for mean in means)
    return replace(workload, input_tokens=inputs, output_tokens=outputs)


def _prompts(spec: Conversations) -> Floats:
    """Tokens of system prompt and character, at quantiles of the character length."""
    lengths, room = spec.character_tokens, CHARACTER_SHARE * spec.max_prompt_tokens - spec.system_tokens
    normal = [NormalDist().inv_cdf((i + 0.5) / QUANTILES) for i in range(QUANTILES)]
    variance = np.log1p(lengths.cv**2)
    drawn = lengths.mean * np.exp(np.sqrt(variance) * np.array(normal) - variance / 2)
    quantiles: Floats = spec.system_tokens + np.clip(drawn, NAMING_TOKENS, room)
    return quantiles


GAPS = 6
"""Mean times between two turns that cache warm-up lasts: nearly all sessions return within it."""
TURNOVERS = 2
"""Cache warm-up writes a KV cache this many times over without hits, so that old entries are evicted."""


class SharedPrefixes(NamedTuple):
    """The owner of each prompt's first tokens; columns in order of arrival.

    Tokens up to `everyone` belong to all prompts, up to `of_character` to all of the same `character`, up to
    `of_session` to all of the same `session`, up to `of_history` to those with the same `cut` too.
    """

    everyone: Ints
    character: Ints
    of_character: Ints
    session: Ints
    of_session: Ints
    cut: Ints
    of_history: Ints


def shared_prefixes(schedule: ArrivalSchedule, workload: Workload) -> SharedPrefixes | None:
    """The prefixes that a schedule's prompts share; None without sessions."""
    if schedule.session is None:
        return None
    everyone, none = schedule.shared_tokens, np.zeros(len(schedule), np.int64)
    if schedule.character is None:
        most = np.rint(workload.session_hit * schedule.input_tokens).astype(np.int64)
        most = np.minimum(most, schedule.input_tokens - UNIQUE_TOKENS)
        ends = np.where(most - everyone > UNIQUE_TOKENS, most, everyone)  # as `prompts` makes them
        return SharedPrefixes(everyone, none, everyone, schedule.session, ends, none, ends)
    assert schedule.character_tokens is not None and schedule.history_cut is not None
    assert schedule.persona_tokens is not None
    persona = schedule.character_tokens + schedule.persona_tokens
    own = schedule.session, persona, schedule.history_cut, schedule.input_tokens
    return SharedPrefixes(everyone, schedule.character, schedule.character_tokens, *own)


def scattered(shared: SharedPrefixes, copies: float, seed: int) -> tuple[SharedPrefixes, Ints]:
    """The prompts that one replica in `copies` gets, and the part of the fleet that each turn belongs to.

    A router that ignores sessions sends a turn to any part: each turn becomes one of `copies` sessions at
    random, with a character drawn from those of all and the tokens of the session's own.
    """
    rng = np.random.default_rng([seed, 11])
    part = (rng.random(len(shared.session)) * copies).astype(np.int64)
    session = shared.session * (int(copies) + 1) + part
    sessions, place = np.unique(session, return_inverse=True)
    _, first = np.unique(shared.session, return_index=True)
    liked = shared.character[first] if len(first) else shared.character
    return shared._replace(
        session=session, character=rng.permutation(np.resize(liked, len(sessions)))[place]
    ), part


def cache_warmup_s(workload: Workload, rate_qps: float, nodes: int, kv_tokens: float) -> float:
    """Seconds of cache warm-up before a service is measured; 0 without sessions.

    In that time every session returns, and unused entries of a node's `kv_tokens` are evicted.
    """
    gap = gap_s(workload, rate_qps, nodes)
    if gap is None:
        return 0.0
    tokens = workload.input_tokens.mean + workload.output_tokens.mean
    return GAPS * gap + TURNOVERS * kv_tokens / (rate_qps * tokens)


def gap_s(workload: Workload, rate_qps: float, nodes: int) -> float | None:
    """Mean time from one turn of a session to the next, as planned; None without sessions."""
    if chats := workload.conversations:
        return chats.answer_ttft_s + chats.answer_tpot_s * chats.answer_tokens.mean + chats.think_mean_s
    return workload.sessions / (rate_qps * nodes) if workload.sessions else None


def sessions_alive(workload: Workload, rate_qps: float, nodes: int) -> float | None:
    """Concurrent sessions per node, by Little's law; None without sessions."""
    gap = gap_s(workload, rate_qps, nodes)
    return None if gap is None else gap * rate_qps


def blocked(schedule: ArrivalSchedule, ended_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True for each turn that is due before its session's previous turn has ended."""
    if schedule.session is None or schedule.character is None:
        return np.zeros(len(schedule), np.bool_)
    order = np.argsort(schedule.session, kind="stable")
    follows = np.flatnonzero(np.diff(schedule.session[order]) == 0)
    late = np.zeros(len(schedule), np.bool_)
    turns, before = order[follows + 1], order[follows]
    late[turns] = ended_s[before] > schedule.due_ns[turns] / NS
    return late


def reusable_share(workload: Workload) -> float | None:
    """Share of prompt tokens that an earlier prompt began with; None without sessions."""
    if chats := workload.conversations:
        return means_of(chats).reusable
    return max(workload.session_hit, workload.prefix_hit) if workload.sessions else None
