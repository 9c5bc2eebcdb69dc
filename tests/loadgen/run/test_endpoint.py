"""Asking an endpoint what it serves: one server, one key, and no way for the key to reach another."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from conf.io.secret import Secret
from loadgen.run.endpoint import TargetError, models_of

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server, and the key of each request that it got."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers.get("Authorization"))
            answer(self)

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, args=(0.01,)).start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}", keys
        finally:
            listening.shutdown()


def says(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def models(*names: str) -> Answer:
    return says(json.dumps({"data": [{"id": name} for name in names]}).encode())


@pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), (None, None)])
def test_a_server_gets_its_key_and_says_its_models(key: str | None, sent: str | None) -> None:
    with server(models("m")) as (url, keys):
        assert models_of(url, Secret(key) if key else None) == [{"id": "m"}]
    assert keys == [sent]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_the_key_stays(status: int) -> None:
    with (
        server(models("m")) as (elsewhere, keys),
        server(says(b"", status, Location=f"{elsewhere}/v1/models")) as (url, _),
        pytest.raises(TargetError) as refused,
    ):
        models_of(url, Secret("secret"))
    assert keys == []
    assert str(refused.value) == (
        f"{url}/v1/models does not answer as a model server: it redirects to {elsewhere}/v1/models: "
        "name the server that answers itself"
    )


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(models("proxied")) as (proxy, keys), server(models("m")) as (url, _):
        monkeypatch.setenv("http_proxy", proxy)
        assert models_of(url, Secret("secret")) == [{"id": "m"}]
    assert keys == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says(b"", 401), "HTTP 401"),
        (says(b"", 302), "it answers HTTP 302"),
        (says(b"", 302, Location="file:///etc/hostname"), "it redirects to file:///etc/hostname"),
        (says(b"<html>"), "Expecting value"),
        (says(b"{}"), "no list of models"),
        (says(b"[]"), "no list of models"),
    ],
)
def test_what_is_no_model_server_is_told_in_one_line(answer: Answer, why: str) -> None:
    with server(answer) as (url, _), pytest.raises(TargetError) as refused:
        models_of(url, None)
    told = str(refused.value)
    assert told.startswith(f"{url}/v1/models does not answer as a model server: ") and why in told
    assert "\n" not in told


def test_nobody_there() -> None:
    with pytest.raises(TargetError, match="refused"):
        models_of("http://127.0.0.1:9", None)
