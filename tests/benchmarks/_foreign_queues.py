"""Queueing networks on a virtual clock: a gateway, then servers in parallel with times of their own."""

import math
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from tests.benchmarks._foreign_steps import Answered, Floats, Ints


@dataclass(frozen=True, slots=True)
class Network:
    """`servers` behind a gateway, first come first served: mean seconds and the variation of a service.

    The first token comes with the first `first_share` of the service, the others evenly over the rest.
    """

    servers: int
    mean_s: float
    cv: float = 1.0
    gateway_s: float = 0.02
    first_share: float = 0.02


@dataclass(slots=True)
class QueueNetwork:
    """A network that serves; a request's time does not depend on its lengths."""

    network: Network
    seed: int = 0
    _due: list[tuple[float, int, int]] = field(default_factory=list)
    _begun: list[tuple[int, float, float, float, int]] = field(default_factory=list)
    _free: list[float] = field(default_factory=list)
    _gate_s: float = 0.0
    _told_s: float = 0.0
    _chance: Any = None

    def __post_init__(self) -> None:
        self._chance = np.random.default_rng([self.seed, 36])
        self._free = [0.0] * self.network.servers
        heapify(self._free)

    def submit(self, key: int, at_s: float, _: int, output_tokens: int, *__: object) -> None:
        """Plan an arrival; they come in the order of their times."""
        self._due.append((at_s, key, output_tokens))

    def add(self, at: Floats, _: Floats, wanted: Ints) -> None:
        """Plan arrivals."""
        self._due += [
            (one, k, tokens) for k, (one, tokens) in enumerate(zip(at.tolist(), wanted.tolist(), strict=True))
        ]

    def retract(self, after_s: float) -> None:
        """Forget what is due later."""
        self._due = [one for one in self._due if one[0] <= after_s]

    def advance(self, until_s: float) -> None:
        """Let everyone who is due by `until_s` through the gateway and into the queue."""
        self._told_s = max(self._told_s, until_s)
        come = [one for one in self._due if one[0] <= until_s]
        self._due = self._due[len(come) :]
        seconds = self._services(len(come)).tolist()
        gates = (self.network.gateway_s * self._chance.exponential(1.0, len(come))).tolist()
        for (at_s, key, tokens), service_s, gate_s in zip(come, seconds, gates, strict=True):
            self._gate_s = max(at_s, self._gate_s) + gate_s
            begin_s = max(self._gate_s, self._free[0])
            heapreplace(self._free, begin_s + service_s)
            self._begun.append((key, at_s, begin_s, service_s, tokens))

    def observe(self) -> list[Answered]:
        """Answers that ended since the last call, each once, and those in the system."""
        seen, now, share = [], self._told_s, self.network.first_share
        for key, _, begin_s, service_s, wanted in self._begun:
            first_s, end_s = begin_s + share * service_s, begin_s + service_s
            if first_s > now:
                seen.append(Answered(key, 0, None, None, 0, False))
                continue
            done = end_s <= now
            part = 1.0 if done else (now - first_s) / (end_s - first_s)
            tokens = wanted if done else min(wanted - 1, 1 + int(part * (wanted - 1)))
            seen.append(Answered(key, 0, first_s, min(end_s, now), max(tokens, 1), done or wanted == 1))
        self._begun = [one for one, told in zip(self._begun, seen, strict=True) if not told.finished]
        return seen

    def warmed(self, warm: bool) -> None:
        """Nothing here is warm or cold."""

    def latencies(self) -> tuple[Floats, Floats]:
        """TTFT and TPOT of all requests, in seconds, once all have begun."""
        _, at, begin, service, wanted = (np.array(column) for column in zip(*self._begun, strict=True))
        first = self.network.first_share * service
        tpot = np.where(wanted > 1, (service - first) / np.maximum(wanted - 1, 1), np.nan)
        return begin + first - at, tpot

    def _services(self, count: int) -> Floats:
        """Service times: exponential with a variation of 1, else lognormal."""
        net = self.network
        if net.cv == 1:
            return np.asarray(net.mean_s * self._chance.exponential(1.0, count))
        sd = math.sqrt(math.log1p(net.cv**2))
        return np.asarray(net.mean_s * np.exp(sd * self._chance.standard_normal(count) - sd**2 / 2))
