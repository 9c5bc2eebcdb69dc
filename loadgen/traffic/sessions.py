"""Chat sessions as rows of arrays: new ones, ones met in the middle, and their turns."""

import numpy as np
from numpy.typing import NDArray

from conf.specs.conversation import (
    CHARACTER_SHARE,
    MESSAGE_SHARE,
    NAMING_TOKENS,
    PERSONA_SHARE,
    Conversations,
)
from loadgen.traffic.lengths import Ints, cut_tokens, draw_lengths
from loadgen.traffic.processes import Floats

_COUNTS = "turn", "character", "character_tokens", "persona_tokens", "said_tokens"
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
        said = self._messages(POOL, rng) + draw_lengths(spec.answer_tokens, POOL, rng)
        self._said = np.concatenate([[0], np.cumsum(np.concatenate([said, said]))])

    @property
    def gap_s(self) -> float:
        """Mean time from one turn of a session to the next."""
        return sum(self._gap_parts_s())

    def begun(self, count: int, rng: np.random.Generator) -> Rows:
        """`count` sessions before their first turn; the caller sets mark, number and time."""
        spec, rows = self.spec, np.zeros(count, dtype=SESSION)
        rows["character"] = np.searchsorted(self._popular, rng.random(count)).clip(0, spec.characters - 1)
        rows["character_tokens"] = self._prompt[rows["character"]]
        most = int(PERSONA_SHARE * spec.max_prompt_tokens)
        rows["persona_tokens"] = _within(draw_lengths(spec.persona_tokens, count, rng), most)
        return rows

    def in_the_middle(self, count: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
        """`count` sessions as time 0 meets them between two turns: the turn before, and the session
        afterwards.

        The draw is exact without playing a past. The number of earlier turns is geometric, as for any turn;
        the time between the two turns is biased by its length (a longer one is met more often), and 0 is
        uniform within it. Only the sum of earlier tokens is needed: that of a stretch of the pool.
        """
        spec, rows = self.spec, self.begun(count, rng)
        rows["turn"] = np.minimum(rng.geometric(1 / spec.turns, count) - 1, POOL)
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
        for name in SESSION.names or ():
            turns[name] = rows[name]
        turns["said_tokens"] += messages.astype(np.int32)
        fixed = (rows["character_tokens"] + rows["persona_tokens"]).astype(np.int64)
        said = turns["said_tokens"].astype(np.int64)
        cut = cut_tokens(said, self.spec.max_prompt_tokens - fixed, self.spec.step_tokens)
        turns["history_cut"] = cut
        turns["input_tokens"] = fixed + said - cut
        turns["output_tokens"] = answers
        return turns

    def _next(self, turns: Rows, due_s: Floats) -> Rows:
        rows = np.zeros(len(turns), dtype=SESSION)
        for name in SESSION.names or ():
            rows[name] = turns[name]
        rows["said_tokens"] += turns["output_tokens"]
        rows["turn"] += 1
        rows["due_s"] = due_s
        return rows

    def _messages(self, count: int, rng: np.random.Generator) -> Ints:
        most = int(MESSAGE_SHARE * self.spec.max_prompt_tokens)
        drawn: Ints = np.minimum(draw_lengths(self.spec.message_tokens, count, rng), most)
        return drawn

    def _gap_parts_s(self) -> tuple[float, float, float]:
        """Mean seconds to the first token, of the other tokens, and of thinking."""
        spec = self.spec
        return spec.answer_ttft_s, spec.answer_tpot_s * spec.answer_tokens.mean, spec.think_mean_s

    def _gaps_s(self, answers: Ints, think_s: Floats) -> Floats:
        gaps_s: Floats = self.spec.answer_ttft_s + self.spec.answer_tpot_s * answers + think_s
        return gaps_s

    def _met_gaps(self, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
        """Answers and gaps as an instant meets them: each in proportion to its length.

        In such a sum one part is biased, chosen in proportion to the means; a lognormal biased by its size is
        itself times 1 + cv^2.
        """
        spec, parts = self.spec, np.array(self._gap_parts_s())
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
    clipped: Ints = np.clip(tokens, NAMING_TOKENS, most)
    return clipped
