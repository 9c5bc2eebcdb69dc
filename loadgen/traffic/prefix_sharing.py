"""How far planned prompts begin alike, and what sessions make of a service: pure figures of a schedule.

Knows schedules and workloads; knows no cache, no router and no engine.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import Workload
from loadgen.traffic.conversation_means import means_of
from loadgen.traffic.lengths import UNIQUE_TOKENS, Ints
from loadgen.traffic.schedule import NS, ArrivalSchedule

GAPS = 6
"""Of the mean time between two turns of a session: by then nearly all have been seen again."""
TURNOVERS = 2
"""So often the fill writes a KV cache full if nothing is found there, so that what is old is forgotten."""


class SharedPrefixes(NamedTuple):
    """Whose the first tokens of each prompt are; columns in the order of arrival.

    Up to `everyone` those of all prompts, up to `of_character` of all of its `character`, up to `of_session`
    of all of its `session`, and up to `of_history` of those of its session with the same `cut`.
    """

    everyone: Ints
    character: Ints
    of_character: Ints
    session: Ints
    of_session: Ints
    cut: Ints
    of_history: Ints


def shared_prefixes(schedule: ArrivalSchedule, workload: Workload) -> SharedPrefixes | None:
    """What a schedule's prompts share; None without sessions, where they share one beginning or nothing."""
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
    """The prompts that part of a fleet gets, one replica in `copies`, if the others are as this part.

    A router that does not go by sessions sends a turn to any part: each turn of a session becomes that of one
    of `copies` sessions at random. Every such session is a session of the fleet as this part sees it, and
    there are as many. Each has a character of its own, drawn from those of all, with the tokens that the
    session's had. Also told is which part's each turn is.
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
    """How long caches are filled before a service is looked at, in seconds; 0 without sessions.

    `rate_qps` is that of a node, `kv_tokens` the KV of one. Long enough that every session was there again,
    and that what nobody asks for has been forgotten.
    """
    gap = gap_s(workload, rate_qps, nodes)
    if gap is None:
        return 0.0
    return GAPS * gap + TURNOVERS * kv_tokens / (rate_qps * _tokens(workload))


def gap_s(workload: Workload, rate_qps: float, nodes: int) -> float | None:
    """The mean time from one turn of a session to the next, as planned; None without sessions."""
    if talks := workload.conversations:
        return talks.answer_ttft_s + talks.answer_tpot_s * talks.answer_tokens.mean + talks.think_mean_s
    return workload.sessions / (rate_qps * nodes) if workload.sessions else None


def sessions_alive(workload: Workload, rate_qps: float, nodes: int) -> float | None:
    """Sessions per node that go on at a time, by Little's law; None without sessions."""
    gap = gap_s(workload, rate_qps, nodes)
    return None if gap is None else gap * rate_qps


def blocked(schedule: ArrivalSchedule, ended_s: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which turns of conversations are due before the turn before them ended, and so would have waited."""
    if schedule.session is None or schedule.character is None:
        return np.zeros(len(schedule), np.bool_)
    order = np.argsort(schedule.session, kind="stable")
    follows = np.flatnonzero(np.diff(schedule.session[order]) == 0)
    late = np.zeros(len(schedule), np.bool_)
    turns, before = order[follows + 1], order[follows]
    late[turns] = ended_s[before] > schedule.due_ns[turns] / NS
    return late


def reusable_share(workload: Workload) -> float | None:
    """The share of prompt tokens with which an earlier prompt began as well; None without sessions."""
    if talks := workload.conversations:
        return means_of(talks).reusable
    return max(workload.session_hit, workload.prefix_hit) if workload.sessions else None


def _tokens(workload: Workload) -> float:
    return workload.input_tokens.mean + workload.output_tokens.mean
