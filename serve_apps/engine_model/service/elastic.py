"""A service whose engines come and go while it serves: seconds of CPU for a day of it on the virtual clock.

What says how many are wanted is handed in. A new engine begins with an empty prefix cache. An engine that
goes gets no more requests and ends those it has; with a lost node the requests on it are lost, and have no
times.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from serve_apps.engine_model.compiled import loop
from serve_apps.engine_model.compiled.fast_engine import (
    OVERFLOW,
    FastSpec,
    Floats,
    UnsupportedByFastPath,
    checked,
)
from serve_apps.engine_model.compiled.loop import EngineArrays
from serve_apps.engine_model.cost.noise import Noise
from serve_apps.engine_model.service import elastic_loop
from serve_apps.engine_model.service.routed import Requests

MODES = {
    "leastconn": elastic_loop.LEAST,
    "roundrobin": elastic_loop.TURN,
    "round_robin": elastic_loop.TURN,
    "pow2": elastic_loop.FEWER,
    "random": elastic_loop.RANDOM,
}
"""Ways to choose an engine that need no session."""
FIRST_ROOM = 512
"""Rows of requests for each engine; doubled where more are open (our choice)."""

Wanted = Callable[[float, int, Mapping[int, int]], int]
"""(now in s, engines asked for so far, requests on each engine that serves) -> engines to ask for."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The life of engines: `slots` places for them, `per_node` on a node, of which `first` serve at once.

    An engine serves `scale_up_s` after it was asked for. The first node is lost at `lost_s`; without
    `replaced` nothing takes its place.
    """

    slots: int
    per_node: int
    first: int
    scale_up_s: float
    step_s: float
    lost_s: float = math.inf
    replaced: bool = True


class ElasticTimes(NamedTuple):
    """Times of requests in order of arrival (nan of one that failed), and the fleet over time.

    From each `at_s` on, `serving` engines get requests and `nodes` hold at least one engine.
    """

    first_s: Floats
    last_s: Floats
    at_s: Floats
    serving: Floats
    nodes: Floats


def serve_elastic(
    spec: FastSpec, requests: Requests, policy: str, life: Lifecycle, wanted: Callable[[], Wanted], seed: int
) -> ElasticTimes:
    """All requests to their end, on as many engines as `wanted` asks for; it is made anew for each try.

    Where a full KV cache might preempt, all is served once more with prompts that wait until they fit whole.
    Raises UnsupportedByFastPath, or ValueError for a request that can never be served.
    """
    if policy not in MODES:
        raise UnsupportedByFastPath(f"routing {policy} keeps sessions or streams, which no fleet here has")
    if requests.prefixes is not None:
        raise UnsupportedByFastPath("prompts share several prefixes")
    if not Noise(spec.spec, seed).silent:
        raise UnsupportedByFastPath("noise of many engines is drawn by each of them")
    asked = checked(spec, requests.asked)
    for counted in (False, True):
        service = _Service(spec, requests.sent_s, asked, life.slots, seed, counted)
        try:
            return _Fleet(service, MODES[policy], life, wanted()).served()
        except UnsupportedByFastPath:
            if counted:
                raise
    raise AssertionError("the second try returns or raises")


class _Service:
    """Engines as compiled arrays, and the times of the requests that have ended."""

    def __init__(
        self, spec: FastSpec, sent_s: Floats, asked: list[np.ndarray], slots: int, seed: int, counted: bool
    ) -> None:
        longest, count = int(asked[1].max(initial=1)), len(sent_s)
        self._make = partial(_arrays, spec, slots, longest, counted)
        self._engines = self._make(FIRST_ROOM)
        self._fresh = spec.arrays(1, 0, longest, counted=counted)
        self._fleet = elastic_loop.fleet_arrays(slots, FIRST_ROOM)
        rng = np.random.default_rng([seed, 7])
        self._asked = (*asked, rng.random(count), rng.random(count))
        self.sent_s = sent_s
        self.first_s, self.last_s = np.full(count, np.nan), np.full(count, np.nan)

    def run(self, until_s: float, mode: int) -> None:
        """Serve up to `until_s`. Raises UnsupportedByFastPath if a KV cache might overflow."""
        while True:
            why = elastic_loop.serve_until(
                until_s, mode, self.sent_s, self._asked, self._fleet, self._engines
            )
            if why == loop.OUT_OF_KV:
                raise UnsupportedByFastPath(OVERFLOW)
            if why == loop.REACHED:
                return
            self._free_rows()

    def collect(self) -> None:
        """Take the times of all that has ended."""
        elastic_loop.collect(self.first_s, self.last_s, self._fleet, self._engines)

    def begin(self, engine: int) -> None:
        """A new engine, of which nothing is known, gets requests from now on."""
        self._engines.states[engine] = self._fresh.states[0]
        self._engines.ring[engine] = self._fresh.ring[0]
        self._fleet.serving[engine] = self._fleet.alive[engine] = True

    def drain(self, engine: int) -> None:
        self._fleet.serving[engine] = False

    def end(self, engine: int) -> None:
        """The engine is gone, with the requests that it still has."""
        self.collect()
        self._fleet.serving[engine] = self._fleet.alive[engine] = False
        self._engines.states[engine] = self._fresh.states[0]

    def open(self, engine: int) -> int:
        return int(self._engines.states[engine]["open"])

    def _free_rows(self) -> None:
        """Rows of ended requests become free; where too few have ended, there are twice as many rows."""
        self.collect()
        rows = self._fleet.number.shape[1]
        if 2 * int(self._engines.states["added"].max()) < rows:
            return
        larger, fleet = self._make(2 * rows), elastic_loop.fleet_arrays(len(self._fleet.alive), 2 * rows)
        larger.requests[:, :rows] = self._engines.requests
        fleet.number[:, :rows] = self._fleet.number
        self._engines = self._engines._replace(requests=larger.requests)
        self._fleet = self._fleet._replace(number=fleet.number)


def _arrays(spec: FastSpec, slots: int, longest: int, counted: bool, rows: int) -> EngineArrays:
    return spec.arrays(slots, rows, longest, counted=counted)


class _Fleet:
    """The engines that start, serve and drain, looked at every `step_s`."""

    def __init__(self, service: _Service, mode: int, life: Lifecycle, wanted: Wanted) -> None:
        self._service, self._mode, self._life, self._wanted = service, mode, life, wanted
        self._target = life.first
        self._ready_s: dict[int, float] = {}
        self._serving = set(range(life.first))
        self._draining: set[int] = set()
        self._gone: set[int] = set()
        self._lost_s = life.lost_s
        self._seen: list[tuple[float, int, int]] = []
        for engine in self._serving:
            service.begin(engine)

    def served(self) -> ElasticTimes:
        """Run until all requests have ended."""
        sent_s, step_s = self._service.sent_s, self._life.step_s
        end_s = float(sent_s[-1]) if len(sent_s) else 0.0
        for step in range(math.ceil(end_s / step_s) + 1):
            self._look(step * step_s)
        self._service.run(math.inf, self._mode)
        self._service.collect()
        at_s, serving, nodes = (
            np.array(column, dtype=np.float64) for column in zip(*self._seen, strict=True)
        )
        return ElasticTimes(self._service.first_s, self._service.last_s, at_s, serving, nodes)

    def _look(self, now_s: float) -> None:
        for ready_s, engine in sorted((at_s, one) for one, at_s in self._ready_s.items() if at_s <= now_s):
            self._service.run(ready_s, self._mode)  # an engine does not wait for the next look
            del self._ready_s[engine]
            self._serving.add(engine)
            self._service.begin(engine)
            self._note(ready_s)
        self._service.run(now_s, self._mode)
        for engine in [one for one in self._draining if not self._service.open(one)]:
            self._draining.remove(engine)
            self._service.end(engine)
        if now_s >= self._lost_s:
            self._lost_s = math.inf
            self._lose()
        requests = {engine: self._service.open(engine) for engine in sorted(self._serving)}
        self._target = self._wanted(now_s, self._target, requests)
        self._reach(now_s)
        self._note(now_s)

    def _lose(self) -> None:
        """The engines of the first node are gone."""
        for engine in range(self._life.per_node):
            self._ready_s.pop(engine, None)
            for group in (self._serving, self._draining):
                group.discard(engine)
            self._service.end(engine)
            if not self._life.replaced:
                self._gone.add(engine)

    def _reach(self, now_s: float) -> None:
        """Start or stop engines until as many as asked for start or serve; the last places go first."""
        missing = self._target - len(self._serving) - len(self._ready_s)
        used = self._serving | self._draining | self._gone | set(self._ready_s)
        free = [engine for engine in range(self._life.slots) if engine not in used]
        for engine in free[: max(0, missing)]:
            self._ready_s[engine] = now_s + self._life.scale_up_s
        stopped = [*sorted(self._ready_s, reverse=True), *sorted(self._serving, reverse=True)]
        for engine in stopped[: max(0, -missing)]:
            if engine in self._ready_s:
                del self._ready_s[engine]
            else:
                self._serving.remove(engine)
                self._draining.add(engine)
                self._service.drain(engine)

    def _note(self, now_s: float) -> None:
        held = self._serving | self._draining | set(self._ready_s)
        nodes = len({engine // self._life.per_node for engine in held})
        seen = len(self._serving), nodes
        if not self._seen or self._seen[-1][1:] != seen:
            self._seen.append((now_s, *seen))
