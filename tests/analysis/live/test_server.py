"""analysis.live.server and address over real sockets: names, routes, readers hostile, slow or too many."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from analysis.live import server as live_server
from analysis.live.address import Address
from analysis.live.server import LiveServer, serving
from analysis.live.state import Ending, LiveState, LiveView
from conf import ConfigError
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.runs.live_states import running
from tests.support.words.words import TABLES


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """A server of a run that runs."""
    monkeypatch.setattr(live_server, "PERIOD_S", 0.02)
    with serving(Address.from_words("0", "--live"), LiveView(running()), "--live") as up:
        yield up


def connected(server: LiveServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.address.port), PATIENCE_S)


def asked(
    server: LiveServer, path: str = "/", method: str = "GET", **headers: str
) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.address.port, timeout=PATIENCE_S)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def said(server: LiveServer, request: bytes) -> bytes:
    """All that the server says to these bytes."""
    with connected(server) as line:
        line.sendall(request)
        answer = b""
        while piece := line.recv(2**16):
            answer += piece
        return answer


def states(line: Any) -> Iterator[dict[str, Any]]:
    """The states of a stream as they come; comments are left out."""
    for text in line:
        if text.startswith(b"data: "):
            yield json.loads(text.removeprefix(b"data: "))


def test_the_page_has_its_state_and_a_policy_that_lets_nothing_else_in(server: LiveServer) -> None:
    response, body = asked(server)
    policy = response.headers["Content-Security-Policy"]
    assert response.status == 200 and response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert policy.startswith("default-src 'none'; style-src 'nonce-") and "unsafe" not in policy
    (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
    assert body.count(f'nonce="{nonce}"'.encode()) == 2
    assert asked(server)[0].headers["Content-Security-Policy"] != policy
    assert "connect-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b""), "it names no other server"
    assert b"20261124-050000-a1b2" in body and b"null /* the" not in body
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in response.headers


def test_the_state_is_json_and_the_metrics_are_prometheuss(server: LiveServer) -> None:
    _, state = asked(server, "/state")
    tree = json.loads(state)
    assert tree["run"]["now"]["pending"] == 20 and tree["age_s"] >= 0
    response, text = asked(server, "/metrics?ignored=1")
    names = {family.name for family in text_string_to_metric_families(text.decode())}
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "maxqps_offered_qps" in names


def test_another_path_or_method_is_refused_and_a_head_has_no_body(server: LiveServer) -> None:
    assert asked(server, "/../etc/passwd")[0].status == 404
    assert asked(server, "http://127.0.0.1/")[0].status == 404
    response, body = asked(server, "/", "POST")
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")
    assert b"POST" not in body
    for path in ("/", "/state", "/metrics", "/events"):
        response, body = asked(server, path, "HEAD")
        assert (response.status, body) == (200, b"")


@pytest.mark.parametrize("host", ["evil.example", "", "127.0.0.1.evil.example"])
def test_a_name_that_a_stranger_points_here_is_refused(server: LiveServer, host: str) -> None:
    for path in ("/", "/events", "/state", "/metrics"):
        response, body = asked(server, path, Host=host)
        assert response.status == 403 and b"20261124" not in body


def test_a_request_of_nonsense_is_refused_without_repeating_it(server: LiveServer) -> None:
    answer = said(server, b"GET <script> nonsense HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400") and b"<script>" not in answer
    assert said(server, b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n").split()[1] == b"505"
    assert b" 403 " in said(server, b"GET / HTTP/1.1\r\n\r\n").splitlines()[0], "no Host at all"


def test_a_request_that_is_too_long_is_cut_off(server: LiveServer) -> None:
    with connected(server) as line:
        line.sendall(b"GET / HTTP/1.1\r\n" + b"X: " + b"x" * live_server.HEAD_BYTES)
        answer = line.recv(2**16)
    assert answer.startswith(b"HTTP/1.1 431")


def test_a_client_that_trickles_is_dropped_too(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "HEAD_S", 0.3)
    with connected(server) as line, pytest.raises(OSError):
        while True:
            line.sendall(b"x")
            time.sleep(0.05)


def test_a_stream_tells_states_as_they_change_and_the_last_one_at_the_end(server: LiveServer) -> None:
    with connected(server) as line, line.makefile("rb") as file:
        line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heard = states(file)
        assert next(heard)["run"]["now"]["index"] == 8
        server.view.add({"event": "warm", "text": "another phase"})
        assert next(heard)["run"]["phase"] == "another phase"
        server.view.end(Ending("VALID", 0))
        server.closing.set()
        assert [tree["run"]["ending"]["text"] for tree in heard] == ["VALID"]


def test_a_stream_that_is_quiet_stays_alive(server: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_server, "KEEP_ALIVE_S", 0.1)
    with connected(server) as line, line.makefile("rb") as file:
        line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert next(text for text in file if text.startswith(b":")) == b":\n"


def test_a_reader_that_takes_nothing_is_dropped_and_holds_nobody_up(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    with monkeypatch.context() as patch, connected(server) as line:
        patch.setattr(live_server, "SEND_S", 0.2)
        line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(12) == b"HTTP/1.1 200"

        def dropped() -> bool:
            server.view.add({"event": "told", "text": "x" * 2_000_000})
            return threading.active_count() <= before

        until(dropped, "the slow reader was never dropped")
    assert asked(server, "/state")[0].status == 200


def test_readers_beyond_the_bound_are_told_to_come_again(server: LiveServer) -> None:
    lines = [connected(server) for _ in range(live_server.MOST_CLIENTS)]
    try:
        for line in lines:
            line.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(12) == b"HTTP/1.1 200"
        with connected(server) as more:
            assert more.recv(2**10).startswith(b"HTTP/1.1 503")
    finally:
        for line in lines:
            line.close()

    # A reader who is gone is noticed with the next state that it is sent.
    def served_again() -> bool:
        server.view.add({"event": "told", "text": "anything"})
        try:
            return asked(server, "/state")[0].status == 200
        except OSError:
            return False

    until(served_again, "places never became free")


def test_nothing_listens_after_the_end() -> None:
    with serving(Address.from_words("0", "--live"), LiveView(LiveState()), "--live") as server:
        port = server.address.port
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    assert "live view" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(("words", "host", "port"), TABLES["addresses"])
def test_a_port_alone_is_this_machine(words: str, host: str, port: int) -> None:
    assert Address.from_words(words, "--live") == Address(host, port)


@pytest.mark.parametrize(
    "words", ["", "eighty", "65536", "-1", "1e3", ":8090", "[]:1", "host:", "8" * 9999, "\u0663", "1\n2"]
)
def test_anything_else_is_refused_in_one_line(words: str) -> None:
    with pytest.raises(ConfigError, match="^--live .*: give a port") as error:
        Address.from_words(words, "--live")
    assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_an_address_answers_to_its_own_names_alone() -> None:
    own, wide = Address("127.0.0.1", 8090), Address("0.0.0.0", 8090)
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8090", "[::1]:8090", "127.0.0.1"):
        assert own.is_named(host) and wide.is_named(host), host
    strange = "localhost.evil.example", "127.0.0.1.evil.example:8090", "10.0.0.1", "[::2]"
    assert not [host for host in ("", "evil.example", *strange) if own.is_named(host)]
    # Beyond loopback a number will do, and a stranger's name will not.
    assert wide.is_named("10.0.0.1:8090") and wide.is_named(socket.gethostname())
    assert not wide.is_named("evil.example")
    assert Address("head.example", 1).is_named("Head.Example:1")


def test_what_only_this_machine_reaches() -> None:
    assert all(Address(host, 1).is_loopback for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"))
    assert not any(Address(host, 1).is_loopback for host in ("0.0.0.0", "::", "10.0.0.1", "head.example"))
    assert Address("::1", 5).url == "http://[::1]:5/"
    assert socket.gethostname() in Address("0.0.0.0", 5).url


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="--live 127.0.0.1:.*cannot listen there"):
            Address("127.0.0.1", taken.getsockname()[1]).refuse_taken("--live")
    Address("127.0.0.1", 0).refuse_taken("--live")
