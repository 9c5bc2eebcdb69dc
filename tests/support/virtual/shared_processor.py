"""A server of known capacity that is none of ours: each answer gets one token a step, which takes longer the
more answers there are.
"""

import math
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

STEP_S, PER_ANSWER_S = 0.020, 0.0004
"""Seconds of a step, and more of them for each answer in it (our choice: 50 answers double an idle step)."""


def step_s(answers: int) -> float:
    """Seconds of a step that gives a token to so many answers."""
    return STEP_S + PER_ANSWER_S * answers


@dataclass(slots=True)
class Answer:
    """A request and how far its answer is (`tests.support.virtual.virtual_target`).

    It gets its first token in the step after step `joined`.
    """

    key: int
    at_s: float
    wanted: int
    joined: int = 0
    replica: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None
    tokens: int = 0

    @property
    def finished(self) -> bool:
        return self.tokens == self.wanted


@dataclass(slots=True)
class Arrivals:
    """What a service on a virtual clock was told that will come."""

    _due: list[tuple[float, int, Answer]] = field(default_factory=list, kw_only=True)

    def submit(self, key: int, at_s: float, _: int, output_tokens: int, *__: object) -> None:
        heappush(self._due, (at_s, key, Answer(key, at_s, output_tokens)))

    def retract(self, after_s: float) -> None:
        """Forget what is due later."""
        self._due = [one for one in self._due if one[0] <= after_s]
        heapify(self._due)


@dataclass(slots=True)
class SharedProcessor(Arrivals):
    """The server on a virtual clock (`tests.support.virtual.virtual_target`); a prompt costs nothing.

    Every answer gets one token a step, so that one of w tokens that joins after step k ends with step k + w,
    whatever happens meanwhile: only joining and ending cost arithmetic, and an hour takes a second.
    `speed` divides the time of every step.
    """

    speed: float = 1.0
    _running: list[tuple[int, int, Answer]] = field(default_factory=list)
    _new: list[Answer] = field(default_factory=list)
    _ended: list[Answer] = field(default_factory=list)
    _steps: int = 0
    _now_s: float = 0.0
    _told_s: float = 0.0

    def advance(self, until_s: float) -> None:
        """Run every step that ends by `until_s`; who comes during a step joins the next."""
        self._told_s = until_s
        while True:
            if not self._running and self._due and self._due[0][0] <= until_s:
                self._now_s = max(self._now_s, self._due[0][0])
            while self._due and self._due[0][0] <= self._now_s:
                self._join(heappop(self._due)[2])
            if not self._running or not self._alike(until_s):
                return

    def observe(self) -> list[Answer]:
        """Answers that ended since the last call, each once, and those in the system."""
        ended, self._ended = self._ended, []
        running = [answer for _, _, answer in self._running]
        for answer in running:
            answer.tokens = self._steps - answer.joined
            answer.last_token_s = self._now_s if answer.tokens else None
        return ended + running + [answer for at_s, _, answer in self._due if at_s <= self._told_s]

    def _join(self, answer: Answer) -> None:
        answer.joined = self._steps
        self._new.append(answer)
        heappush(self._running, (self._steps + answer.wanted, answer.key, answer))

    def _alike(self, until_s: float) -> int:
        """Run steps of one batch until one ends, one joins or `until_s` comes; returns how many."""
        each_s = step_s(len(self._running)) / self.speed
        steps = min(self._running[0][0] - self._steps, int((until_s - self._now_s) / each_s))
        if self._due:
            steps = min(steps, max(1, math.ceil((self._due[0][0] - self._now_s) / each_s)))
        if steps <= 0:
            return 0
        for answer in self._new:
            answer.first_token_s = self._now_s + each_s
        self._new.clear()
        self._steps += steps
        self._now_s += steps * each_s
        while self._running and self._running[0][0] == self._steps:
            answer = heappop(self._running)[2]
            answer.tokens, answer.last_token_s = answer.wanted, self._now_s
            self._ended.append(answer)
        return steps
