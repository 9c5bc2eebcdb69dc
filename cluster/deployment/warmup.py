"""Sends requests like those of the measurement until a replica's latency is stable.

Serve calls a replica running before its first request has compiled anything.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeVar

from conf.io.http_get import DEFAULT_ACCESS, Access, AskError, HttpAnswer, ask

REPLICA_ID, SESSION_ID = "x-replica-id", "x-session-id"
UNNAMED = ""
"""The name of the replica in an answer without one."""
STEADY, MOST, BAND, JITTER_S = 5, 20, 0.2, 0.02
"""A replica gets requests until its last five TTFTs differ by at most a fifth of their median, or by the
jitter of a busy machine, at most twenty (all our choice)."""
MOST_AT_ONCE = 32
"""Most replicas that are warmed at the same time; each costs a thread."""
RETRY_S, LOOK_S = 0.1, 1.0
"""Seconds until a failed request is sent again, and between looks for lost replicas (our choice)."""
ATTEMPT_S, LAST_S = 120.0, 2.0
"""Time-out of a request in seconds, which may compile for minutes; then it is sent again. The last one before
the deadline has this much, so that a silent replica is not taken for a silent front (all our choice)."""
FINAL = (400, 401, 403, 413, 422)
"""HTTP statuses of a final refusal; others, such as 404 and 503, may pass."""

Result = TypeVar("Result")


class DeployError(Exception):
    """The application did not come up, does not answer or did not go away; the message is one line.

    `last_words` are printable, bounded log lines of the processes that failed, if any were found.
    """

    def __init__(self, message: str, last_words: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.last_words = tuple(last_words)


@dataclass(frozen=True, slots=True)
class WarmupRequests:
    """Requests of one shape: `body(n)` is the JSON of the n-th, streamed, with a prompt of its own."""

    path: str
    body: Callable[[int], bytes]
    access: Access = DEFAULT_ACCESS


@dataclass(frozen=True, slots=True)
class ReplicaWarmup:
    """Warm-up of a replica: TTFT in seconds of its first request, and the median TTFT of its last ones.

    All are None if answers did not name the replica, and `stable` with too few requests to say.
    """

    first_request_s: float | None = None
    warm_ttft_s: float | None = None
    warm_requests: int | None = None
    stable: bool | None = None

    @classmethod
    def from_ttfts(cls, ttfts_s: Sequence[float]) -> "ReplicaWarmup":
        """The warm-up from all its TTFTs in seconds, in order."""
        known = stable(ttfts_s) if len(ttfts_s) >= STEADY else None
        return cls(ttfts_s[0], statistics.median(ttfts_s[-STEADY:]), len(ttfts_s), known)


def stable(ttfts_s: Sequence[float]) -> bool:
    """True if the last five TTFTs are close to each other; False with fewer than five."""
    last = ttfts_s[-STEADY:]
    return len(last) == STEADY and max(last) - min(last) <= max(BAND * statistics.median(last), JITTER_S)


class ReplicaWarmer:
    """Warms replicas and fronts until `deadline_s` (monotonic); none may stay silent for `patience_s`.

    `lost` returns one line if replicas are gone, whose answers are then not awaited. `named` is False once an
    answer did not name its replica.
    """

    def __init__(
        self,
        warm: WarmupRequests,
        deadline_s: float,
        patience_s: float,
        lost: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.named = True
        self._lost, self._looked_s = lost, -math.inf
        self._warm = warm
        self._deadline_s = deadline_s
        self._patience_s = patience_s
        self._numbers = count()
        self._lock = threading.Lock()

    def replicas(self, urls: Mapping[str, str]) -> dict[str, ReplicaWarmup]:
        """Warm each replica at its own URL, all at once. Raises DeployError."""
        return dict(zip(urls, self._concurrently(self._replica, list(urls.values())), strict=True))

    def front(self, url: str, replicas: Collection[str], are_warm: bool = False) -> dict[str, ReplicaWarmup]:
        """Warm replicas through a front that chooses among them; its answers name the replica.

        If they `are_warm`, each has to answer once: a front learns of replicas late. If answers name no
        replica, all count as one, `UNNAMED`. Raises DeployError if an expected replica never answers.
        """
        ttfts: dict[str, list[float]] = {}
        wanted, sent, began_s = len(replicas), 0, time.monotonic()
        while True:
            sent += wanted
            for name, ttft_s in self._concurrently(self._answer, [url] * wanted):
                ttfts.setdefault(name, []).append(ttft_s)
            unseen = set(replicas) - set(ttfts) if UNNAMED not in ttfts else set()
            share = wanted if UNNAMED in ttfts else 1
            steady = all(len(times) >= STEADY * share and stable(times) for times in ttfts.values())
            if not unseen and (are_warm or steady or sent >= MOST * wanted):
                return {name: ReplicaWarmup.from_ttfts(times) for name, times in ttfts.items()}
            silent = f"{len(unseen)} of {wanted} replicas never answered at {url}"
            self._refuse_late(silent)
            if are_warm and time.monotonic() > began_s + self._patience_s:
                raise DeployError(silent)

    def _replica(self, url: str) -> ReplicaWarmup:
        ttfts_s: list[float] = []
        while len(ttfts_s) < MOST and not stable(ttfts_s):
            ttfts_s.append(self._answer(url)[1])
        return ReplicaWarmup.from_ttfts(ttfts_s)

    def _concurrently(self, call: Callable[[str], Result], urls: Sequence[str]) -> list[Result]:
        """Results of `call` on each URL, run concurrently; raises the first DeployError.

        An interrupt does not wait for answers: the threads are daemons, and send nothing more.
        """
        results: dict[int, Result] = {}
        errors: list[DeployError] = []

        def call_one(number: int) -> None:
            try:
                results[number] = call(urls[number])
            except DeployError as error:
                errors.append(error)

        try:
            for first in range(0, len(urls), MOST_AT_ONCE):
                numbers = range(first, min(first + MOST_AT_ONCE, len(urls)))
                threads = [
                    threading.Thread(target=call_one, args=(number,), daemon=True) for number in numbers
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        except BaseException:
            self._deadline_s = 0.0
            raise
        if errors:
            raise errors[0]
        return [results[number] for number in range(len(urls))]

    def _answer(self, url: str) -> tuple[str, float]:
        """Replica and TTFT in seconds of the first request that is answered; failures are sent again."""
        began_s = time.monotonic()
        while True:
            try:
                return self._ask(url)
            except AskError as error:
                why = f"{url} does not answer: {error}"
                self._refuse_late(why)
                self._refuse_lost()
                if time.monotonic() > began_s + self._patience_s:
                    raise DeployError(why) from error
            time.sleep(RETRY_S)

    def _ask(self, url: str) -> tuple[str, float]:
        with self._lock:
            number = next(self._numbers)
        headers = {"Content-Type": "application/json", SESSION_ID: f"warm-{number}"}
        left_s = min(ATTEMPT_S, max(LAST_S, self._deadline_s - time.monotonic()))
        body = self._warm.body(number)
        answer = ask(url + self._warm.path, left_s, body=body, headers=headers, access=self._warm.access)
        if answer.status in FINAL:
            raise DeployError(f"{url} refuses the workload's requests: {answer.said}")
        if b"[DONE]" not in successful(answer).body:
            raise AskError("the stream ended before its end")
        name = answer.names.get(REPLICA_ID, UNNAMED)
        self.named &= name != UNNAMED
        return name, answer.first_s

    def _refuse_late(self, why: str) -> None:
        if time.monotonic() > self._deadline_s:
            raise DeployError(why)

    def _refuse_lost(self) -> None:
        """Look whether a replica is gone, one thread at a time and not at every failure."""
        with self._lock:
            if time.monotonic() < self._looked_s + LOOK_S:
                return
            self._looked_s = time.monotonic()
        if why := self._lost():
            raise DeployError(why)


def successful(answer: HttpAnswer) -> HttpAnswer:
    """The answer itself. Raises AskError for one that says no success."""
    if not answer.is_success:
        raise AskError(answer.said)
    return answer


def warmup_line(warmups: Mapping[str, ReplicaWarmup]) -> str:
    """One line for people on the warm-up of all replicas."""
    ttfts_ms = [1e3 * (warmup.warm_ttft_s or 0.0) for warmup in warmups.values()]
    times = f"{_span(ttfts_ms)} ms to the first token after "
    times += f"{_span([warmup.warm_requests or 0 for warmup in warmups.values()])} requests"
    unstable = sum(warmup.stable is False for warmup in warmups.values())
    return f"{times}, {unstable} not stable yet" if unstable else times


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"
