"""Replicas that only compute prompts, as the ones that answer tell of them."""

import json
import time
from http import HTTPStatus

import pytest

from cluster.deployment import service_reports
from cluster.deployment.serve_state import DeployError
from cluster.deployment.service_reports import PrefillReport, reports, verdict, warm_prefill
from cluster.deployment.warmup import WarmupError
from conf.io.http_get import HttpAnswer

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
    found = warm_prefill("http://x", {"a", "b"}, lambda: sent.append(1), time.monotonic() + 60)
    assert found == {"a": PrefillReport("http://a:1", 3), "b": PrefillReport("http://b:1", 1)}
    assert len(sent) == 1, "one that is not known yet gets nothing by more requests"
    assert set(pages.asked) == {"http://x/maxqps/prefill"}


@pytest.mark.parametrize("page", [HTTPStatus.NOT_FOUND, b"{", b"[]", {"a": {"url": 1}}, {"a": 3}])
def test_a_server_that_does_not_tell_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, page: object) -> None:
    Pages(monkeypatch, page)
    assert reports("http://x") is None
    assert warm_prefill("http://x", {"a"}, lambda: pytest.fail("nothing to send"), 0.0) == {}


def test_one_that_never_computes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    Pages(monkeypatch, {"a": A, "b": B})
    with pytest.raises(WarmupError, match="1 of 2 prefill replicas never computed a prompt"):
        warm_prefill("http://x", {"a", "b"}, lambda: None, 0.0)


@pytest.mark.parametrize(
    ("policy", "seen", "said"),
    [
        ("consistent_hash", {"1": "aaa", "2": "bbb"}, "1.00 replicas per session, 2 in use"),
        ("bounded_hash", {"1": "aab", "2": "bbb"}, "should keep sessions"),
        ("consistent_hash", {"1": "aaa", "2": "aaa"}, "should spread sessions"),
        ("pow2", {"1": "aaa", "2": "bbb"}, "should spread a session's requests"),
        ("round_robin", {"1": "aba", "2": "bab"}, "2.00 replicas per session"),
    ],
)
def test_what_the_self_test_says(policy: str, seen: dict[str, str], said: str) -> None:
    words = {session: list(replicas) for session, replicas in seen.items()}
    if "should" in said:
        with pytest.raises(DeployError, match=f"{said}.*serve shutdown"):
            verdict(policy, words)
    else:
        assert said in verdict(policy, words)
