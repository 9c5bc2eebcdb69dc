"""A session of our own, where starting it does not go well at once."""

import urllib.error
import urllib.request
from typing import Any

import pytest

from cluster.ray_session import session
from cluster.ray_session.placement import SessionError
from conf import load

ASKED = load(["cluster=laptop"])
CLUSTER, ROUTING = ASKED.cluster, ASKED.routing


@pytest.mark.ray
def test_a_node_that_is_late_once_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    tries: list[int] = []
    add_nodes = session.add_nodes

    def late_once(own: Any, cluster: Any, load_cpus: float, *ports: Any, **head: Any) -> None:
        tries.append(1)
        add_nodes(own, cluster, load_cpus, *ports, **head)
        if len(tries) == 1:
            raise Exception(f"The current node {session.LATE}. This could happen because ...")

    monkeypatch.setattr(session, "add_nodes", late_once)
    with session.open_session(CLUSTER, None) as opened:
        assert opened.url == "" and len([node for node in ray.nodes() if node["Alive"]]) == 1
    assert len(tries) == 2 and not ray.is_initialized()


@pytest.mark.ray
def test_a_front_that_is_late_once_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = session.serve.start

    def late_once(where: Any, options: Any) -> None:
        started.append(options.port)
        start(where, options)
        if len(started) == 1:
            raise TimeoutError("HTTP proxies not available after 60s.")

    monkeypatch.setattr(session.serve, "start", late_once)
    with session.open_session(CLUSTER, ROUTING) as opened:
        assert len(started) == 2 and opened.url.endswith(f":{started[-1]}")
        with pytest.raises(urllib.error.HTTPError, match="404"):  # no application is deployed
            urllib.request.urlopen(opened.url, timeout=30)


@pytest.mark.parametrize(("words", "tries"), [(session.LATE, session.STARTS), ("no space left", 1)])
def test_what_stays_wrong_is_one_line(words: str, tries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def broken(*_: Any, **__: Any) -> None:
        tried.append(1)
        raise Exception(words)

    monkeypatch.setattr(session, "add_nodes", broken)
    with (
        pytest.raises(SessionError, match=f"cannot start Ray on this machine: {words}; free memory"),
        session.open_session(CLUSTER, None),
    ):
        pass
    assert len(tried) == tries
