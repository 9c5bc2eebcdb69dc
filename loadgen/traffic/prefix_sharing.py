"""Common beginnings of planned prompts, and what sessions mean for a service: pure figures of a schedule."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Workload
from loadgen.traffic.conversation_means import means_of
from loadgen.traffic.lengths import UNIQUE_TOKENS, Ints
from loadgen.traffic.schedule import NS, ArrivalSchedule

GAPS = 6
"""Mean times between two turns that cache warm-up lasts: nearly all sessions return within it."""
TURNOVERS = 2
"""Cache warm-up writes a KV cache this many times over without hits, so that old entries are evicted."""


class SharedPrefixes(NamedTuple):
    """The owner of each prompt's first tokens; columns in order of arrival.

    Tokens up to `everyone` belong to all prompts, up to `of_character` to all of the same `character`, up to
    `of_session` to all of the same `session`, and up to `of_history` to those of a session with the same
    `cut`.
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
    """The prompts that one part of a fleet gets, one replica in `copies`, and the part that each turn belongs
    to.

    A router that ignores sessions sends a turn to any part: each turn becomes one of `copies` sessions at
    random, with a character drawn from those of all and the tokens of the session's own.
    """
    rng = np.random.default_rng([seed, 11])
    part = (rng.random(len(shared.session)) * copies).astype(np.int64)
    session = shared.session * (int(copies) + 1) + part
    known, place = np.unique(session, return_inverse=True)
    _, first = np.unique(shared.session, return_index=True)
    liked = shared.character[first] if len(first) else shared.character
    return shared._replace(
        session=session, character=rng.permutation(np.resize(liked, len(known)))[place]
    ), part


def cache_warmup_s(workload: Workload, rate_qps: float, nodes: int, kv_tokens: float) -> float:
    """Seconds of cache warm-up before a service is measured; 0 without sessions.

    `rate_qps` and `kv_tokens` are those of one node. In that time every session returns, and entries that
    nobody asks for are evicted.
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
