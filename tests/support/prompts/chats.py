"""Made-up conversations for tests: arrivals, lengths and whose the tokens of each prompt are."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from loadgen.traffic.prefix_sharing import SharedPrefixes


class Chats(NamedTuple):
    """Requests in order of arrival; `tokens`: prompt and output tokens."""

    due_s: Any
    tokens: tuple[Any, Any]
    prefixes: SharedPrefixes


def chats(
    rate_qps: float,
    seconds: float,
    seed: int = 0,
    turns: int = 12,
    gap_s: float = 30.0,
    context: int = 3000,
    step: int = 800,
    system: int = 200,
    character: int = 300,
    persona: int = 100,
) -> Chats:
    """Sessions begin at random, and each of their turns adds a message and an answer to the history.

    Beyond `context` tokens the oldest history goes, `step` tokens at a time.
    """
    rng = np.random.default_rng(seed)
    rows = []
    begin, session = -turns * gap_s, 0
    while (begin := begin + rng.exponential(turns / rate_qps)) < seconds:
        at, history, cut, who = begin, 0, 0, int(rng.zipf(1.6)) % 50
        for _ in range(rng.geometric(1 / turns)):
            message, answer = int(rng.integers(40, 160)), int(rng.integers(40, 200))
            head = system + character + persona
            while head + history - cut + message > context:
                cut += step
            if 0 <= at < seconds:
                prompt = head + history - cut + message
                ends = system, who, system + character, session, head, cut, prompt
                rows.append((at, prompt, answer, *ends))
            history += message + answer
            at += rng.exponential(gap_s)
        session += 1
    columns = np.array(sorted(rows)).T
    due_s, prompt, answer, *ends = columns
    return Chats(
        due_s,
        (prompt.astype(np.int64), answer.astype(np.int64)),
        SharedPrefixes(*(c.astype(np.int64) for c in ends)),
    )


def common(anys: Sequence[Any], other: Sequence[Any]) -> int:
    """Tokens with which both begin."""
    most = min(len(anys), len(other))
    return bisect_left(range(1, most + 1), True, key=lambda count: anys[:count] != other[:count])


def tokens(chats: Chats) -> list[list[Any]]:
    """Every prompt word by word, as the levels of `SharedPrefixes` say: equal words are equal tokens."""
    out, p = [], chats.prefixes
    for i in range(len(p.everyone)):
        who, session, cut = int(p.character[i]), int(p.session[i]), int(p.cut[i])
        ends = [int(column[i]) for column in (p.everyone, p.of_character, p.of_session, p.of_history)]
        spans = zip([(0,), (1, who), (2, session), (3, session, cut)], [0, *ends], ends, strict=False)
        out.append([(*mark, at) for mark, start, end in spans for at in range(start, end)])
        out[-1] += [(4, i, at) for at in range(ends[-1], int(chats.tokens[0][i]))]
    return out
