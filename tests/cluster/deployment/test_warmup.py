"""`cluster.deployment.warmup`: when a replica is warm, on servers of known behaviour, without Ray."""

import itertools
import json
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from http import HTTPStatus
from typing import Any

import pytest

from cluster.deployment import service_reports, warmup
from cluster.deployment.service_reports import reported_facts, reports, verdict, warm_prefill
from cluster.deployment.warmup import DeployError, ReplicaWarmer, ReplicaWarmup, WarmupRequests
from conf.io.http_get import HttpAnswer
from tests.support.machine.patience import PATIENCE_S
from tests.support.servers.threaded_server import Reply, serving

Answer = Callable[[int], tuple[str, float]]
"""From the number of the request to the replica that is named and the seconds to its first token."""


def server(
    answer: Answer, end: bytes = b"data: [DONE]\n\n", status: int = 200
) -> AbstractContextManager[str]:
    numbers = itertools.count(1)

    def reply(*_: object) -> Reply:
        name, _ = answer(next(numbers))
        return status, {"x-replica-id": name} if name else {}, b"data: {}\n\n" + end

    return serving(reply)


class Clock:
    """Stands for the module `time`: it passes only while somebody sleeps."""

    def __init__(self) -> None:
        self._now_s, self._lock = 0.0, threading.Lock()

    def monotonic(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self._now_s += seconds


def answered_by(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> Clock:
    """Let a server of this behaviour answer all requests, on a clock that no busy machine moves."""
    clock, numbers = Clock(), itertools.count(1)

    def ask(*_: Any, **__: Any) -> HttpAnswer:
        name, first_s = answer(next(numbers))
        clock.sleep(first_s)
        return HttpAnswer(200, {warmup.REPLICA_ID: name}, b"data: [DONE]\n\n", first_s)

    monkeypatch.setattr(warmup, "ask", ask)
    monkeypatch.setattr(warmup, "time", clock)
    return clock


def warmer(
    patience_s: float = PATIENCE_S, limit_s: float = PATIENCE_S, lost: Callable[[], str | None] = lambda: None
) -> ReplicaWarmer:
    shape = WarmupRequests("/v1/completions", lambda n: b'{"n":%d}' % n)
    return ReplicaWarmer(shape, warmup.time.monotonic() + limit_s, patience_s, lost)


@pytest.mark.parametrize(
    ("ttfts_s", "expected"),
    [
        ([9.0, 1.0, 1.0, 1.0, 1.0, 1.0], True),  # the first one compiled
        ([1.0, 1.0, 1.0, 1.0, 1.25], False),
        ([0.001, 0.02, 0.005, 0.001, 0.01], True),  # what a busy machine adds is no sign of anything
        ([1.0, 1.0, 1.0, 1.0], False),  # too few to say
    ],
)
def test_stable_are_five_times_near_each_other(ttfts_s: list[float], expected: bool) -> None:
    assert warmup.stable(ttfts_s) is expected


def test_a_replica_is_asked_until_its_first_compilation_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(monkeypatch, lambda n: ("r0", 2.0 if n <= 2 else 0.1))
    warmth = warmer().replicas({"r0": "http://r0"})["r0"]
    assert warmth == ReplicaWarmup(2.0, 0.1, 7, True)


def test_a_replica_that_never_gets_stable_is_said_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(monkeypatch, lambda n: ("r0", 0.15 * (n % 2)))
    warmth = warmer().replicas({"r0": "http://r0"})["r0"]
    assert (warmth.warm_requests, warmth.stable) == (20, False)
    assert warmup.warmup_line({"r0": warmth}).endswith("after 20 requests, 1 not stable yet")


def test_a_replica_that_is_lost_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "LOOK_S", 0.2)
    looks = iter([None, "1 of 1 replicas died"])
    with pytest.raises(DeployError, match="1 of 1 replicas died"):
        warmer(lost=lambda: next(looks)).replicas({"r0": "http://127.0.0.1:9"})
    assert next(looks, "all taken") == "all taken"


def test_replicas_are_warmed_at_the_same_time() -> None:
    together = threading.Barrier(3)

    def answer(number: int) -> tuple[str, float]:
        if number == 1:
            together.wait(PATIENCE_S)
        return "any", 0.0

    with ExitStack() as stack:
        urls = {name: stack.enter_context(server(answer)) for name in ("r0", "r1", "r2")}
        assert set(warmer().replicas(urls)) == set(urls)


def test_behind_a_front_every_replica_gets_its_share() -> None:
    with server(lambda n: (f"r{n % 3}", 0.0)) as url:
        warmths = warmer().front(url, ["r0", "r1", "r2"])
    assert set(warmths) == {"r0", "r1", "r2"}
    assert all((warmth.warm_requests or 0) >= 5 for warmth in warmths.values())


def test_answers_without_a_name_are_one_unknown_replica() -> None:
    with server(lambda _: ("", 0.0)) as url:
        assert set(warmer().front(url, ["r0", "r1"], are_warm=True)) == {""}
        direct = warmer()
        assert set(direct.replicas({"r0": url})) == {"r0"} and not direct.named
        warmths = warmer().front(url, ["r0", "r1"])
    assert set(warmths) == {""} and (warmths[""].warm_requests or 0) >= 10


def test_a_front_that_never_names_a_replica_has_not_reached_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = answered_by(monkeypatch, lambda _: ("r0", 0.01))
    with pytest.raises(DeployError, match="1 of 2 replicas never answered at http"):
        warmer(patience_s=0.2).front("http://front", ["r0", "r1"], are_warm=True)
    assert clock.monotonic() < 1.0
    with pytest.raises(DeployError, match="1 of 2 replicas never answered at http"):
        warmer(limit_s=2.0).front("http://front", ["r0", "r1"])


@pytest.mark.parametrize(("end", "status"), [(b"", 200), (b"data: [DONE]\n\n", 503)])
def test_half_an_answer_and_a_refusal_are_none(end: bytes, status: int) -> None:
    with (
        server(lambda _: ("r0", 0.0), end, status) as url,
        pytest.raises(DeployError, match="does not answer: "),
    ):
        warmer(patience_s=0.3).replicas({"r0": url})


def test_a_server_that_says_nothing_of_its_engine_is_unknown() -> None:
    with server(lambda _: ("r0", 0.0)) as url:
        assert reported_facts(url) == {}


def test_a_warmth_is_the_median_of_the_last_five() -> None:
    assert ReplicaWarmup.from_ttfts([9, 5, 1, 1, 2, 1, 1]) == ReplicaWarmup(9, 1, 7, False)


def test_a_request_that_is_refused_for_good_is_not_sent_again() -> None:
    numbers: list[int] = []
    with (
        server(
            lambda n: (numbers.append(n), ("", 0.0))[1], end=b'{"message": "too long"}', status=400
        ) as url,
        pytest.raises(DeployError, match="refuses the workload's requests: HTTP 400 .*too long"),
    ):
        warmer(patience_s=60.0, limit_s=60.0).replicas({"r0": url})
    assert numbers == [1]


A, B = {"url": "http://a:1", "prompts": 3}, {"url": "http://b:1", "prompts": 0}


class Pages:
    """Answers one page after the other, and the last one again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pages: object) -> None:
        self.asked: list[str] = []
        self._pages = list(pages)
        monkeypatch.setattr(service_reports, "ask", self._ask)
        monkeypatch.setattr(service_reports, "RETRY_S", 0.0)

    def _ask(self, url: str, *_: object) -> HttpAnswer:
        self.asked.append(url)
        page = self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]
        if isinstance(page, HTTPStatus):
            return HttpAnswer(page, {}, b"", 0.0)
        body = page if isinstance(page, bytes) else json.dumps({"replicas": page}).encode()
        return HttpAnswer(200, {}, body, 0.0)


def test_requests_are_sent_until_each_has_computed_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Pages(monkeypatch, {"a": A}, {"a": A, "b": B}, {"a": A, "b": B | {"prompts": 1}, "old": A})
    sent: list[int] = []
    result = warm_prefill("http://x", {"a", "b"}, lambda: sent.append(1), time.monotonic() + 60)
    assert result == {"a": "http://a:1", "b": "http://b:1"}
    assert len(sent) == 1, "one that is not known yet gets nothing by more requests"
    assert set(pages.asked) == {"http://x/maxqps/prefill"}


@pytest.mark.parametrize("page", [HTTPStatus.NOT_FOUND, b"{", b"[]", {"a": {"url": 1}}, {"a": 3}])
def test_a_server_that_does_not_tell_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, page: object) -> None:
    Pages(monkeypatch, page)
    assert reports("http://x") is None
    assert warm_prefill("http://x", {"a"}, lambda: pytest.fail("nothing to send"), 0.0) == {}


def test_one_that_never_computes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Pages(monkeypatch, {"a": A, "b": B})
    with pytest.raises(DeployError, match="1 of 2 prefill replicas never computed a prompt"):
        warm_prefill("http://x", {"a", "b"}, lambda: None, 0.0)


@pytest.mark.parametrize(
    ("policy", "seen", "message"),
    [
        ("consistent_hash", {"1": "aaa", "2": "bbb"}, "1.00 replicas per session, 2 in use"),
        ("bounded_hash", {"1": "aab", "2": "bbb"}, "should keep sessions"),
        ("consistent_hash", {"1": "aaa", "2": "aaa"}, "should spread sessions"),
        ("pow2", {"1": "aaa", "2": "bbb"}, "should spread a session's requests"),
        ("round_robin", {"1": "aba", "2": "bab"}, "2.00 replicas per session"),
    ],
)
def test_what_the_self_test_says(policy: str, seen: dict[str, str], message: str) -> None:
    words = {session: list(replicas) for session, replicas in seen.items()}
    if "should" in message:
        with pytest.raises(DeployError, match=f"{message}.*serve shutdown"):
            verdict(policy, words)
    else:
        assert message in verdict(policy, words)
