"""The population of chat sessions, and schedules of their turns: stationary, with the same users at any rate.

Sessions begin as a Poisson process over time and rate: each has a mark, and at r messages per second the
sessions with a mark below r exist. So a higher rate keeps all users of a lower one. Time 0 meets the mean
number of sessions, at any rate."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.specs.workload import (
    CHARACTER_SHARE,
    MESSAGE_SHARE,
    NAMING_TOKENS,
    PERSONA_SHARE,
    Conversations,
)
from loadgen.traffic.schedule import (
    NS,
    ArrivalSchedule,
    Bounds,
    Floats,
    Ints,
    cut_tokens,
    draw_lengths,
    phases_of,
    span_ns,
)

_COUNTS = "turn", "character", "character_tokens", "persona_tokens", "said_tokens"
_FIELDS = ["due_s", "mark", "session", *_COUNTS]
SESSION = np.dtype([("due_s", "f8"), ("mark", "f8"), ("session", "i8"), *((name, "i4") for name in _COUNTS)])
"""A session that continues: its next turn, that turn's due time, and all message and answer tokens so far."""
TURN = np.dtype([*SESSION.descr, ("history_cut", "i4"), ("input_tokens", "i4"), ("output_tokens", "i4")])
"""One turn: `said_tokens` includes its own message; the first `history_cut` of them are left out.

`input_tokens` = `character_tokens` (which include the system prompt) + `persona_tokens` + the kept history.
"""
Rows = NDArray[np.void]
POOL = 2**18
"""Turns from which the past of a session met in the middle is assembled."""


class SessionProcess:
    """Draws sessions of a spec: their characters and their turns."""

    def __init__(self, spec: Conversations, seed: int) -> None:
        self.spec = spec
        rng = np.random.default_rng([seed, spec.characters])
        shares = np.cumsum(np.arange(1, spec.characters + 1, dtype=np.float64) ** -spec.zipf)
        self._popular = shares / shares[-1]
        self._prompt = spec.system_tokens + _within(
            draw_lengths(spec.character_tokens, spec.characters, rng),
            int(CHARACTER_SHARE * spec.max_prompt_tokens) - spec.system_tokens,
        )
        tokens = self._messages(POOL, rng) + draw_lengths(spec.answer_tokens, POOL, rng)
        self._said = np.concatenate([[0], np.cumsum(np.concatenate([tokens, tokens]))])

    def begun(self, count: int, rng: np.random.Generator) -> Rows:
        """`count` sessions before their first turn; the caller sets mark, number and time."""
        spec, rows = self.spec, np.zeros(count, dtype=SESSION)
        rows["character"] = np.searchsorted(self._popular, rng.random(count)).clip(0, spec.characters - 1)
        rows["character_tokens"] = self._prompt[rows["character"]]
        most = int(PERSONA_SHARE * spec.max_prompt_tokens)
        rows["persona_tokens"] = _within(draw_lengths(spec.persona_tokens, count, rng), most)
        return rows

    def in_the_middle(self, count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """`count` sessions as time 0 meets them: the turn before it, and the session afterwards.

        The draw is exact without playing a past. The number of earlier turns is geometric; the time between
        the two turns is biased by its length (a longer one is met more often), and 0 is uniform within it.
        Only the sum of earlier tokens is needed: that of a stretch of the pool.
        """
        rows = self.begun(count, rng)
        rows["turn"] = np.minimum(rng.geometric(1 / self.spec.turns, count) - 1, POOL)
        start = rng.integers(POOL, size=count)
        rows["said_tokens"] = self._said[start + rows["turn"]] - self._said[start]
        answers, gaps_s = self._met_gaps(count, rng)
        last = self._spoken(rows, self._messages(count, rng), answers)
        past = rng.random(count)
        last["due_s"] = -past * gaps_s
        return last, self._next(last, (1 - past) * gaps_s)

    def speak(self, rows: Rows, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """The current turn of each session, and the sessions that continue, at their next turn."""
        spec, count = self.spec, len(rows)
        answers = draw_lengths(spec.answer_tokens, count, rng)
        turns = self._spoken(rows, self._messages(count, rng), answers)
        gaps_s = self._gaps_s(answers, _think_s(spec, count, rng))
        goes_on = rng.random(count) >= 1 / spec.turns
        return turns, self._next(turns[goes_on], turns["due_s"][goes_on] + gaps_s[goes_on])

    def _spoken(self, rows: Rows, messages: Ints, answers: Ints) -> Rows:
        turns = np.zeros(len(rows), dtype=TURN)
        turns[_FIELDS] = rows
        turns["said_tokens"] += messages.astype(np.int32)
        fixed = (rows["character_tokens"] + rows["persona_tokens"]).astype(np.int64)
        tokens = turns["said_tokens"].astype(np.int64)
        cut = cut_tokens(tokens, self.spec.max_prompt_tokens - fixed, self.spec.step_tokens)
        turns["history_cut"] = cut
        turns["input_tokens"] = fixed + tokens - cut
        turns["output_tokens"] = answers
        return turns

    def _next(self, turns: Rows, due_s: Floats) -> Rows:
        rows = np.zeros(len(turns), dtype=SESSION)
        rows[:] = turns[_FIELDS]
        rows["said_tokens"] += turns["output_tokens"]
        rows["turn"] += 1
        rows["due_s"] = due_s
        return rows

    def _messages(self, count: int, rng: np.random.Generator) -> Ints:
        most = int(MESSAGE_SHARE * self.spec.max_prompt_tokens)
        return np.minimum(draw_lengths(self.spec.message_tokens, count, rng), most)

    def gap_parts_s(self) -> tuple[float, float, float]:
        """Mean seconds from a turn to the next: to the first token, of the other tokens, and of thinking."""
        spec = self.spec
        return spec.answer_ttft_s, spec.answer_tpot_s * spec.answer_tokens.mean, spec.think_mean_s

    def _gaps_s(self, answers: Ints, think_s: Floats) -> Floats:
        return self.spec.answer_ttft_s + self.spec.answer_tpot_s * answers + think_s

    def _met_gaps(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Answers and gaps as an instant meets them: each in proportion to its length.

        One part of such a sum is biased, chosen in proportion to the means; a biased lognormal is times 1 +
        cv^2.
        """
        spec, parts = self.spec, np.array(self.gap_parts_s())
        chosen = np.searchsorted(np.cumsum(parts / parts.sum()), rng.random(count))
        answers = draw_lengths(spec.answer_tokens, count, rng)
        longer = np.rint(answers * (1 + spec.answer_tokens.cv**2)).astype(np.int64)
        answers = np.where(chosen == 1, longer, answers)
        think_s = _think_s(spec, count, rng)
        think_s = np.where(chosen == 2, think_s * (1 + spec.think_cv**2), think_s)
        return answers, self._gaps_s(answers, think_s)


def _think_s(spec: Conversations, count: int, rng: np.random.Generator) -> Floats:
    variance = np.log1p(spec.think_cv**2)
    return rng.lognormal(np.log(spec.think_mean_s) - variance / 2, np.sqrt(variance), size=count)


def _within(tokens: Ints, most: int) -> Ints:
    """Clip to at least the naming tokens of a part and at most `most`."""
    return np.clip(tokens, NAMING_TOKENS, most)


BANDS = 31
"""Marks are drawn in bands with the edges 0, 1, 2, 4, 8, ..., each when a rate first reaches it."""
CHUNK_TURNS, SHORTEST_S, LONGEST_S = 16_384, 60.0, 1200.0
"""A band is played in chunks that hold about this many turns, within these bounds of time."""
KEPT_S = 600.0
"""Chunks further back than this from the last request for turns are dropped, and played again if needed."""
COLUMNS = "input_tokens output_tokens session turn character character_tokens persona_tokens history_cut"
"""Fields of a turn that are columns of a schedule."""


class SessionPopulation:
    """All sessions of a seed, played as far as requested, and schedules of their turns.

    One population lives through all windows of a run. Time begins at 0, in the stationary state.
    """

    def __init__(self, spec: Conversations, seed: int) -> None:
        self._talk, self._seed = SessionProcess(spec, seed), seed
        self._bands: dict[int, _Band] = {}

    def turns(self, rate_qps: float, start_s: float, end_s: float) -> Rows:
        """The turns (`TURN`) of all sessions at a rate that are due in [start, end), by due time."""
        parts = [np.empty(0, dtype=TURN)]
        for number in range(BANDS):
            if _edge(number) >= rate_qps:
                break
            rows = self._band(number).turns(start_s, end_s)
            parts.append(rows[rows["mark"] < rate_qps])
        joined = np.concatenate(parts)
        return joined[np.argsort(joined["due_s"], kind="stable")]

    def before(self, count: int) -> Rows:
        """The last turns before time 0 of `count` sessions, those with the lowest marks."""
        turns, number = np.empty(0, dtype=TURN), 0
        while len(turns) < count:
            turns, number = np.concatenate([turns, self._band(number).before]), number + 1
        return turns[np.argsort(turns["mark"], kind="stable")][:count]

    def draw(
        self, rate_qps: float, bounds_ns: Bounds, *, window_index: int, first_seq: int
    ) -> ArrivalSchedule:
        """The turns of all sessions that are due within the phases."""
        start_ns, end_ns = span_ns(bounds_ns)
        rows = self.turns(rate_qps, start_ns / NS, end_ns / NS)
        due_ns = (rows["due_s"] * NS).astype(np.int64).clip(start_ns, end_ns - 1)
        return self._schedule(rows, due_ns, phases_of(due_ns, bounds_ns), window_index, first_seq)

    def warm_up(self, due_ns: Ints, first_seq: int) -> ArrivalSchedule:
        """The last turns before time 0 of as many sessions, sent at `due_ns` as the untimed warm-up."""
        return self._schedule(self.before(len(due_ns)), due_ns, np.zeros_like(due_ns), -1, first_seq)

    def _schedule(
        self, rows: Rows, due_ns: Ints, phase: Ints, window_index: int, first_seq: int
    ) -> ArrivalSchedule:
        columns: dict[str, Any] = {name: rows[name].astype(np.int64) for name in COLUMNS.split()}
        return ArrivalSchedule(
            window_index=window_index,
            seq=np.arange(first_seq, first_seq + len(rows), dtype=np.int64),
            due_ns=due_ns,
            phase=phase,
            shared_tokens=np.full(len(rows), self._talk.spec.system_tokens, dtype=np.int64),
            **columns,
        )

    def _band(self, number: int) -> "_Band":
        if number not in self._bands:
            self._bands[number] = _Band(self._talk, self._seed, number)
        return self._bands[number]


class _Band:
    """The sessions whose marks lie between two edges, one chunk of time after the other."""

    def __init__(self, talk: SessionProcess, seed: int, number: int) -> None:
        self._talk, self._seed, self._number = talk, seed, number
        self._low, self._high = _edge(number), _edge(number + 1)
        self._chunk_s = min(max(CHUNK_TURNS / (self._high - self._low), SHORTEST_S), LONGEST_S)
        self._begin()

    def turns(self, start_s: float, end_s: float) -> Rows:
        first, last = (int(max(at_s, 0.0) // self._chunk_s) for at_s in (start_s, end_s))
        if first < min(self._chunks, default=self._next):
            self._begin()
        while self._next <= last:
            self._play()
            for old in [each for each in self._chunks if (each + 1) * self._chunk_s < start_s - KEPT_S]:
                del self._chunks[old]
        rows = np.concatenate([self._chunks[each] for each in range(first, last + 1)])
        return rows[(rows["due_s"] >= start_s) & (rows["due_s"] < end_s)]

    def _begin(self) -> None:
        marks = self._marks()
        count = len(marks)
        self.before, self._alive = self._talk.in_the_middle(count, self._generator(0))
        for rows in (self.before, self._alive):
            rows["mark"], rows["session"] = marks, self._numbers(0, count)
        self._sessions, self._next = count, 0
        self._chunks: dict[int, Rows] = {}

    def _marks(self) -> Floats:
        """Marks of the sessions that time 0 meets: even, as a Poisson surplus would stay for a run."""
        per_qps = (1 - 1 / self._talk.spec.turns) * sum(self._talk.gap_parts_s())
        first = float(np.random.default_rng([self._seed, 8]).random())
        begin, end = (math.ceil(edge * per_qps - first) for edge in (self._low, self._high))
        return (first + np.arange(begin, end, dtype=np.float64)) / per_qps

    def _play(self) -> None:
        """Play the next chunk: every session that begins in it, and every turn until its end."""
        rng, start_s = self._generator(self._next + 1), self._next * self._chunk_s
        end_s = start_s + self._chunk_s
        talking = np.concatenate([self._alive, self._newcomers(start_s, rng)])
        later, played = [np.empty(0, dtype=SESSION)], [np.empty(0, dtype=TURN)]
        while len(talking):
            now = talking["due_s"] < end_s
            later.append(talking[~now])
            turns, talking = self._talk.speak(talking[now], rng)
            played.append(turns)
        self._alive, self._chunks[self._next] = np.concatenate(later), np.concatenate(played)
        self._next += 1

    def _newcomers(self, start_s: float, rng: np.random.Generator) -> Rows:
        """Sessions that begin in a chunk: a Poisson number, uniform in time and mark."""
        count = int(rng.poisson((self._high - self._low) * self._chunk_s / self._talk.spec.turns))
        rows = self._talk.begun(count, rng)
        rows["mark"] = rng.uniform(self._low, self._high, count)
        rows["due_s"] = start_s + self._chunk_s * rng.random(count)
        rows["session"] = self._numbers(self._sessions, count)
        self._sessions += count
        return rows

    def _numbers(self, first: int, count: int) -> Ints:
        return np.arange(first, first + count, dtype=np.int64) * BANDS + self._number

    def _generator(self, place: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, self._number, place, 7])


def _edge(number: int) -> float:
    return 0.0 if number == 0 else 2.0 ** (number - 1)
