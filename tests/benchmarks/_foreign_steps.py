"""A server of steps on a virtual clock for `foreign_services`, with nothing of this project's engine in it.

A step gives every running answer a token and reads some of the waiting prompts, first come first served. What
makes it slow in time, dear for some prompts or short of memory is in `Traits`.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CLOCK, MEMORY, STALL_AT = 0, 1, 2
HEAD, RUNNING, ENDED, PHASE, HELD, BACK = 0, 1, 2, 3, 4, 5
"""Places in a server's state: its time, the batch it remembers, its next stall; and the next prompt of the
queue, the answers that run, those that ended, the phase of its speed, the tokens it holds, those put back."""
READ_AT_ONCE = 2048.0
"""Prompt tokens of a step, at the plain price."""


@dataclass(frozen=True, slots=True)
class Traits:
    """A service of steps: its seconds and what is odd about it (all our choice).

    A step takes `step_s` and `answer_s` for each answer in it and `prompt_s` for each prompt token. Of the
    prompts a share `dear_share` costs `dear_times` as much; of the first tokens `late_share` come `late_s`
    late. The service is `noisy_times` as slow for a minute in the mean after each three; up to
    `memory_times` slower with the mean batch of the last three minutes; still for `stall_s` each
    `stall_every_s`. Prompts cost up to `cold_times` as much until `warm_answers` have ended. `held_tokens`
    are all that fit. Of `replicas` in turn the last is slower by `lame_times`. A `fair` one reads a part of
    each waiting prompt, and not one after the other. From `changed_s` on it is `changed_times` as slow.
    """

    step_s: float = 0.012
    answer_s: float = 0.0005
    prompt_s: float = 25e-6
    dear_share: float = 0.0
    dear_times: float = 1.0
    late_share: float = 0.0
    late_s: float = 5.0
    noisy_times: float = 1.0
    memory_times: float = 1.0
    memory_batch: float = 30.0
    stall_every_s: float = math.inf
    stall_s: float = 2.0
    cold_times: float = 1.0
    warm_answers: float = 1500.0
    held_tokens: float = math.inf
    replicas: int = 1
    lame_times: float = 1.0
    fair: bool = False
    changed_s: float = math.inf
    changed_times: float = 1.0


NOISY_S, CALM_S, MEMORY_S = 60.0, 180.0, 180.0


@numba.njit(cache=True)
def _advance(  # noqa: PLR0915 (one compiled loop)
    until: float, count: int, at: Floats, prompt: Floats, price: Floats, wanted: Ints,
    unread: Floats, tokens: Ints, first: Floats, last: Floats, running: Ints, back: Ints,
    switches: Floats, now: Floats, place: Ints, traits: Floats,
) -> None:  # fmt: skip
    """Run every step that begins by `until`."""
    step_s, answer_s, prompt_s, noisy, memory, memory_batch = traits[:6]
    stall_every, stall_s, cold, warm, held_most, fair = traits[6:12]
    while True:
        if place[RUNNING] == 0 and place[BACK] == 0:
            if place[HEAD] >= count:
                return
            if at[place[HEAD]] > now[CLOCK]:
                now[MEMORY] *= math.exp(-(at[place[HEAD]] - now[CLOCK]) / MEMORY_S)
                now[CLOCK] = at[place[HEAD]]
        if now[CLOCK] > until:
            return
        chill = 1.0 + (cold - 1.0) * max(0.0, 1.0 - place[ENDED] / warm)
        budget, read_s, batch = READ_AT_ONCE, 0.0, place[RUNNING]
        if fair > 0:
            while place[HEAD] < count and at[place[HEAD]] <= now[CLOCK]:
                back[place[BACK]] = place[HEAD]
                place[BACK] += 1
                place[HEAD] += 1
            waiting = 0
            for j in range(place[BACK]):
                k = back[j]
                taken = min(unread[k], READ_AT_ONCE / place[BACK] / price[k])
                unread[k] -= taken
                read_s += taken * price[k] * prompt_s
                if unread[k] > 1e-6:
                    back[waiting] = k
                    waiting += 1
                else:
                    running[place[RUNNING]] = k
                    place[RUNNING] += 1
            place[BACK], budget = waiting, 0.0
        # Those put back come first, then the queue in its order.
        while budget > 0.0:
            returned = place[BACK] > 0
            if returned:
                k = back[place[BACK] - 1]
            elif place[HEAD] < count and at[place[HEAD]] <= now[CLOCK]:
                k = place[HEAD]
            else:
                break
            if unread[k] == prompt[k] + tokens[k]:  # not begun: it needs room for all it will read
                if place[HELD] + unread[k] > held_most and place[HELD] > 0:
                    break
                place[HELD] += int(unread[k])
            each = price[k] * chill
            taken = min(unread[k], budget / each)
            unread[k] -= taken
            budget -= taken * each
            read_s += taken * each * prompt_s
            if unread[k] > 1e-6:
                break
            unread[k] = 0.0
            running[place[RUNNING]] = k
            place[RUNNING] += 1
            if returned:
                place[BACK] -= 1
            else:
                place[HEAD] += 1
        while place[PHASE] < len(switches) and switches[place[PHASE]] <= now[CLOCK]:
            place[PHASE] += 1
        lasts = step_s + answer_s * batch + read_s
        if place[PHASE] % 2 == 1:
            lasts *= noisy
        lasts *= 1.0 + (memory - 1.0) * min(1.0, now[MEMORY] / memory_batch)
        if now[CLOCK] + lasts > now[STALL_AT]:
            lasts += stall_s
            now[STALL_AT] += stall_every
        now[MEMORY] += (batch - now[MEMORY]) * (1.0 - math.exp(-lasts / MEMORY_S))
        now[CLOCK] += lasts
        kept = 0
        for j in range(place[RUNNING]):
            k = running[j]
            tokens[k] += 1
            place[HELD] += 1
            if tokens[k] == 1:
                first[k] = now[CLOCK]
            last[k] = now[CLOCK]
            if tokens[k] >= wanted[k]:
                place[ENDED] += 1
                place[HELD] -= int(prompt[k]) + tokens[k]
            else:
                running[kept] = k
                kept += 1
        place[RUNNING] = kept
        while place[HELD] > held_most and place[RUNNING] > 1:  # the youngest gives way and is read again
            place[RUNNING] -= 1
            k = running[place[RUNNING]]
            place[HELD] -= int(prompt[k]) + tokens[k]
            unread[k] = prompt[k] + tokens[k]
            back[place[BACK]] = k
            place[BACK] += 1


class Answered(NamedTuple):
    """How far a request has come (`tests.support.virtual.virtual_target`)."""

    key: int
    replica: int
    first_token_s: float | None
    last_token_s: float | None
    tokens: int
    finished: bool


def _grown(column: Any, size: int) -> Any:
    """The column with room for `size`."""
    if len(column) >= size:
        return column
    longer = np.zeros(2 * size, dtype=column.dtype)
    longer[: len(column)] = column
    return longer


@dataclass(slots=True)
class StepServer:
    """One server of steps. `hours` are those for which the noise of its neighbour is drawn."""

    traits: Traits
    seed: int = 0
    hours: float = 3.0
    slower: float = 1.0
    number: int = 0
    count: int = 0
    _keys: list[int] = field(default_factory=list)
    _columns: dict[str, Any] = field(default_factory=dict)
    _now: Floats = field(default_factory=lambda: np.zeros(3))
    _place: Ints = field(default_factory=lambda: np.zeros(6, dtype=np.int64))
    _told: set[int] = field(default_factory=set)
    _told_s: float = 0.0
    _switches: Floats = field(default_factory=lambda: np.zeros(0))
    _chance: Any = None
    _open: int = 0

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng([self.seed, self.number, 35])
        whole, wide = np.zeros(0, dtype=np.int64), np.zeros(0)
        for name in ("at", "prompt", "price", "unread", "first", "last", "late"):
            self._columns[name] = wide
        for name in ("wanted", "tokens", "running", "back"):
            self._columns[name] = whole
        if self.traits.noisy_times > 1:
            cycles = int(self.hours * 3600 / (NOISY_S + CALM_S) * 1.5) + 50
            spans = self._chance.exponential(1.0, (cycles, 2)) * [CALM_S, NOISY_S]
            begun = self._chance.random() * 4 * CALM_S
            self._switches = np.cumsum(spans) - begun
        every = self.traits.stall_every_s
        self._now[STALL_AT] = self._chance.random() * every if math.isfinite(every) else math.inf

    def submit(self, key: int, at_s: float, input_tokens: int, output_tokens: int, *_: object) -> None:
        """Plan an arrival; they come in the order of their times."""
        self.add(np.array([at_s]), np.array([float(input_tokens)]), np.array([output_tokens]))
        self._keys.append(key)

    def add(self, at: Floats, prompt: Floats, wanted: Ints) -> None:
        """Plan arrivals."""
        begin, end = self.count, self.count + len(at)
        columns = self._columns = {name: _grown(each, end) for name, each in self._columns.items()}
        traits = self.traits
        columns["at"][begin:end], columns["prompt"][begin:end], columns["wanted"][begin:end] = (
            at,
            prompt,
            wanted,
        )
        columns["unread"][begin:end] = prompt
        columns["tokens"][begin:end] = 0
        # Its own draws, whoever asks: a request keeps its luck when an earlier one is taken back.
        luck = self._chance.random((len(at), 2))
        columns["price"][begin:end] = np.where(luck[:, 0] < traits.dear_share, traits.dear_times, 1.0)
        columns["late"][begin:end] = np.where(luck[:, 1] < traits.late_share, traits.late_s, 0.0)
        self.count = end

    def retract(self, after_s: float) -> None:
        """Forget what is due later."""
        left = int(np.searchsorted(self._columns["at"][: self.count], after_s, "right"))
        self.count = left
        del self._keys[left:]

    def advance(self, until_s: float) -> None:
        """Run every step that begins by `until_s`."""
        it, traits, c = self._told_s, self.traits, self._columns
        if it < traits.changed_s < until_s:
            self.advance(it := traits.changed_s)
        self._told_s = max(it, until_s)
        slow = self.slower * (traits.changed_times if it >= traits.changed_s else 1.0)
        numbers = np.array(
            [traits.step_s * slow, traits.answer_s * slow, traits.prompt_s * slow, traits.noisy_times,
             traits.memory_times, traits.memory_batch, traits.stall_every_s, traits.stall_s,
             traits.cold_times, traits.warm_answers, traits.held_tokens, float(traits.fair)]
        )  # fmt: skip
        _advance(
            until_s, self.count, c["at"], c["prompt"], c["price"], c["wanted"], c["unread"], c["tokens"],
            c["first"], c["last"], c["running"], c["back"], self._switches, self._now, self._place, numbers,
        )  # fmt: skip

    def observe(self) -> list[Answered]:
        """Answers that ended since the last call, each once, and those in the system."""
        c, now = self._columns, self._told_s
        begin = self._open
        end = begin + int(np.searchsorted(c["at"][begin : self.count], now, "right"))
        seen, earliest = [], end
        first = c["first"][begin:end] + c["late"][begin:end]
        last = c["last"][begin:end] + c["late"][begin:end]
        whole = (c["tokens"][begin:end] >= c["wanted"][begin:end]) & (last <= now)
        rows = zip(
            first.tolist(), last.tolist(), c["tokens"][begin:end].tolist(), whole.tolist(), strict=True
        )
        for k, (first_s, last_s, tokens, done) in enumerate(rows, begin):
            if k in self._told:
                continue
            if done:
                self._told.add(k)
            else:
                earliest = min(earliest, k)
                came = tokens > 0 and first_s <= now
                tokens = max(1, tokens - (last_s > now)) if came else 0
                first_s, last_s = (first_s, min(last_s, now)) if came else (None, None)
            seen.append(Answered(self._keys[k], self.number, first_s, last_s, tokens, done))
        self._open = earliest
        self._told = {k for k in self._told if k >= earliest}
        return seen

    def warmed(self, warm: bool) -> None:
        """Begin with a warm cache."""
        if warm:
            self._place[ENDED] = int(self.traits.warm_answers)

    def latencies(self) -> tuple[Floats, Floats]:
        """TTFT and TPOT of all requests, in seconds, once all have ended."""
        c, n = self._columns, self.count
        ttft = c["first"][:n] + c["late"][:n] - c["at"][:n]
        more = np.maximum(c["wanted"][:n] - 1, 1)
        return ttft, np.where(c["wanted"][:n] > 1, (c["last"][:n] - c["first"][:n]) / more, np.nan)


@dataclass(slots=True)
class InTurn:
    """Replicas that get the requests in turn, the last of them lame."""

    replicas: list[StepServer]
    _next: int = 0

    @classmethod
    def of(cls, traits: Traits, seed: int, hours: float = 3.0) -> "InTurn":
        """As many as the traits say."""
        last = traits.replicas - 1
        slow = [traits.lame_times if k == last else 1.0 for k in range(traits.replicas)]
        return cls([StepServer(traits, seed, hours, each, k) for k, each in enumerate(slow)])

    def submit(self, key: int, at_s: float, input_tokens: int, output_tokens: int, *_: object) -> None:
        """Plan an arrival at the next replica."""
        self.replicas[self._next].submit(key, at_s, input_tokens, output_tokens)
        self._next = (self._next + 1) % len(self.replicas)

    def add(self, at: Floats, prompt: Floats, wanted: Ints) -> None:
        """Plan arrivals."""
        for k, replica in enumerate(self.replicas):
            replica.add(
                at[k :: len(self.replicas)], prompt[k :: len(self.replicas)], wanted[k :: len(self.replicas)]
            )

    def retract(self, after_s: float) -> None:
        """Forget what is due later."""
        for replica in self.replicas:
            replica.retract(after_s)

    def advance(self, until_s: float) -> None:
        """Run every replica."""
        for replica in self.replicas:
            replica.advance(until_s)

    def observe(self) -> list[Answered]:
        """What every replica tells."""
        return [answer for replica in self.replicas for answer in replica.observe()]

    def warmed(self, warm: bool) -> None:
        """Begin with warm caches."""
        for replica in self.replicas:
            replica.warmed(warm)

    def latencies(self) -> tuple[Floats, Floats]:
        """TTFT and TPOT of all requests, in order of arrival."""
        parts = [replica.latencies() for replica in self.replicas]
        at = np.concatenate([each._columns["at"][: each.count] for each in self.replicas])
        order = np.argsort(at, kind="stable")
        ttft, tpot = (np.concatenate(column)[order] for column in zip(*parts, strict=True))
        return ttft, tpot
