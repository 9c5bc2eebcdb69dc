"""loadgen/fleet/http_client.py against scripted servers: connections, timeouts, TLS, ends, gateways."""

import asyncio
import errno
import gc
import gzip
import itertools
import json
import os
import resource
import socket
import ssl
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httptools
import pytest
import uvloop
import yaml

from conf import load
from conf.io.http_get import Access, certificates
from conf.io.secret import Secret
from loadgen.fleet import http_client, http_connection
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client
from loadgen.fleet.http_connection import UNPACKED_BYTES_LIMIT, Connection
from loadgen.fleet.sse import EventReader
from loadgen.prompts.bodies import Prompts
from tests.support.machine.patience import PATIENCE_NS, PATIENCE_S
from tests.support.servers.certificates import self_signed, server_tls
from tests.support.servers.mock_exchanges import BODY, exchanges, fresh, run
from tests.support.servers.mock_server import END, MockServer, answer, chunk, event, head, sized, token, usage
from tests.support.servers.plans import client_plan


def test_a_whole_answer_is_ok_and_keeps_its_times_in_order() -> None:
    (exchange,) = run(lambda body: answer(body, pause_s=0.01))
    assert exchange.status == "ok"
    assert (exchange.tokens, exchange.events, exchange.done) == (3, 3, True)
    assert (exchange.replica_id, exchange.finish_reason) == ("r1", "length")
    assert exchange.engine == {"steps": 3, "late_steps": 0}
    names = ("sent_ns", "first_byte_ns", "first_token_ns", "last_token_ns", "end_ns")
    times = [getattr(exchange, name) for name in names]
    assert times == sorted(times)
    whole_us = (exchange.last_token_ns - exchange.first_token_ns) / 1000
    assert exchange.reads == len(exchange.gaps_us) + 1 >= 2
    assert sum(exchange.gaps_us) <= whole_us < sum(exchange.gaps_us) + exchange.reads


LAST = token(finish="length")
SCRIPTS: dict[str, tuple[list[Any], str]] = {
    "cut after a token": ([head(), token(), None], "truncated"),
    "not HTTP": ([b"SSH-2.0 hello\r\n\r\n"], "conn_error"),
    "hangs": ([head(), token(), 600.0], "timeout"),
    "all in one write": ([head() + token() * 2 + LAST + usage(3, 3) + END], "ok"),
}


def test_a_timeout_counts_from_the_send_and_ends_one_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that is moved by hundreds of seconds, beside which no delay of this machine counts."""
    later_s = 0

    def monotonic_ns() -> int:
        return time.monotonic_ns() + later_s * 10**9

    async def heard(exchange: Exchange) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while exchange.first_token_ns is None:  # noqa: ASYNC110  no event of its own tells
                await asyncio.sleep(0.01)

    async def main() -> list[Exchange]:
        nonlocal later_s
        ended: asyncio.Queue[Exchange] = asyncio.Queue()
        both = [fresh(number) for number in range(2)]
        async with MockServer(lambda body: [head(), token(), 600.0]) as server:
            client = Client(client_plan([server.url], timeout_s=1000.0), ended.put_nowait)
            for exchange in both:
                client.start(exchange, BODY)
                await heard(exchange)
                later_s += 600
            first = await ended.get()
            assert ended.empty()
            client.cut_all("interrupted")
        return [first, ended.get_nowait()]

    monkeypatch.setattr(http_client, "time", SimpleNamespace(monotonic_ns=monotonic_ns))
    monkeypatch.setattr(http_client, "SWEEP_S", 0.02)
    first, second = asyncio.run(main())
    assert first.end_ns - first.sent_ns >= 1000e9
    assert [(e.plan.seq, e.status, e.error_kind) for e in (first, second)] == [
        (0, "timeout", "deadline"),
        (1, "truncated", "interrupted"),
    ]


@pytest.mark.parametrize(
    ("number", "status", "kind"),
    [
        (errno.EMFILE, "missed", "no_file"),
        (errno.ENFILE, "missed", "no_file"),
        (errno.EADDRNOTAVAIL, "missed", "no_port"),
        (errno.ENOBUFS, "missed", "no_memory"),
        (errno.ENOMEM, "missed", "no_memory"),
        (0, "conn_error", "RuntimeError"),
    ],
)
def test_what_this_machine_lacks_is_not_the_servers_failure(
    monkeypatch: pytest.MonkeyPatch, number: int, status: str, kind: str
) -> None:
    async def main() -> list[Exchange]:
        async def fail(*args: Any, **options: Any) -> None:
            raise OSError(number, "none left") if number else RuntimeError("none left")

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", fail)
        return await asyncio.wait_for(exchanges("http://127.0.0.1:9", 1), PATIENCE_S)

    (exchange,) = asyncio.run(main())
    assert (exchange.status, exchange.error_kind) == (status, kind)
    assert exchange.error is not None and "none left" in exchange.error and exchange.end_ns is not None


def test_no_file_left_is_a_miss_on_uvloop() -> None:
    async def main() -> list[Exchange]:
        with no_file_left():
            return await exchanges("http://127.0.0.1:9", 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        (exchange,) = runner.run(main())
    assert (exchange.status, exchange.error_kind) == ("missed", "no_file")


@contextmanager
def no_file_left() -> Iterator[None]:
    """Open files up to a low limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] + 32, hard))
    try:
        with suppress(OSError):
            while True:
                files.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in files:
            os.close(file)


def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> list[Exchange]:
        async with MockServer() as server:
            port = int(server.url.rpartition(":")[2])
            addresses = [
                (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
                for host in ("127.0.0.2", "127.0.0.1")
            ]

            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: addresses)
            return await exchanges(f"http://server.test:{port}", 1)

    (exchange,) = asyncio.run(main())
    assert exchange.status == "ok"


def test_a_name_is_looked_up_once_and_again_when_the_service_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the load nobody is asked for an address: that would count as time to the first token."""
    hosts: list[str] = []
    known = {"server.test": "127.0.0.1"}

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        hosts.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], port))]

    async def main() -> list[list[tuple[bytes, dict[str, Any]]]]:
        async def never(*_: Any, **__: Any) -> None:
            raise AssertionError("looked up during the load")

        ended: asyncio.Queue[Exchange] = asyncio.Queue()
        async with MockServer() as first, MockServer(host="127.0.0.2", port=first.port) as second:
            client = Client(
                client_plan([url := f"http://server.test:{first.port}"], timeout_s=2.0), ended.put_nowait
            )
            monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
            for seq in range(3):
                client.start(fresh(seq), BODY)  # together: a connection for each
            assert [(await ended.get()).status for _ in range(3)] == ["ok"] * 3
            known["server.test"] = "127.0.0.2"
            monkeypatch.undo()
            monkeypatch.setattr(socket, "getaddrinfo", look_up)
            client.start(fresh(3), BODY)
            await client.retarget([url])
            assert (await ended.get()).status == "ok", "what flies ends at the old address"
            client.cut_all("interrupted")  # the connections that are kept lead there
            client.start(fresh(4), BODY)
            assert (await ended.get()).status == "ok"
            client.cut_all("interrupted")
            return [first.requests, second.requests]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    first, second = asyncio.run(main())
    assert hosts == ["server.test"] * 2
    assert (len(first), len(second)) == (4, 1)
    assert all(b"\r\nHost: server.test:" in head for head, _ in [*first, *second])


@pytest.mark.parametrize("url", [f"http://{'a' * 64}.test", "http://[::1]:9"])
def test_an_address_that_leads_nowhere_is_a_row(url: str) -> None:
    (exchange,) = asyncio.run(exchanges(url, 1))
    assert exchange.status in ("conn_error", "missed") and exchange.error_kind and exchange.end_ns


@pytest.mark.parametrize(
    ("url", "host", "target"),
    [
        ("http://[::1]:{port}", b"Host: [::1]:{port}\r\n", b"POST /v1/completions "),
        ("http://127.0.0.1:{port}/prefix/", b"Host: 127.0.0.1:{port}\r\n", b"POST /prefix/v1/completions "),
        ("http://user:word@127.0.0.1:{port}", b"Host: 127.0.0.1:{port}\r\n", b"POST /v1/completions "),
    ],
)
def test_the_request_names_host_port_and_path(url: str, host: bytes, target: bytes) -> None:
    async def main() -> tuple[bytes, str]:
        async with MockServer(host="::1" if "::1" in url else "127.0.0.1") as server:
            port = server.url.rpartition(":")[2]
            (exchange,) = await exchanges(url.replace("{port}", port), 1)
            assert exchange.status == "ok"
            return server.requests[0][0], port

    request, port = asyncio.run(main())
    assert request.startswith(target) and host.replace(b"{port}", port.encode()) in request
    assert b"session" not in request and b"\r\nAccept-Encoding: identity\r\n" in request


def test_a_slow_connection_is_not_the_clients_lateness(monkeypatch: pytest.MonkeyPatch) -> None:
    connected_ns: list[int] = []

    async def main() -> list[Exchange]:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def slow(*args: Any, **options: Any) -> Any:
            await asyncio.sleep(0.05)
            connected_ns.append(time.monotonic_ns())
            return await connect(*args, **options)

        monkeypatch.setattr(loop, "create_connection", slow)
        async with MockServer() as server:
            return await exchanges(server.url, 2)

    first, second = asyncio.run(main())
    (at_ns,) = connected_ns
    assert first.sent_ns < at_ns < first.first_byte_ns < second.sent_ns


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("tls"))


async def over_tls(certificate: Path, count: int, ca: str = "") -> tuple[list[Exchange], MockServer]:
    async with MockServer(lambda body: answer(body, 0.01), tls=server_tls(certificate)) as server:
        return await exchanges(server.url, count, access=Access(Secret("hush"), ca)), server


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_answers_come_over_tls_too(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, runner: Callable[..., Any]
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    ended, server = runner(over_tls(certificate, 3))
    assert [(exchange.status, exchange.tokens) for exchange in ended] == [("ok", 3)] * 3
    assert server.connections == 1, "kept alive"
    assert all(b"Authorization: Bearer hush" in head for head, _ in server.requests)


@pytest.mark.parametrize(("host", "status"), [("server.test", "ok"), ("another.test", "conn_error")])
def test_it_is_the_name_that_a_certificate_vouches_for(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, host: str, status: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    result = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))]

    async def main() -> Exchange:
        async with MockServer(tls=server_tls(certificate)) as server:
            with monkeypatch.context() as patch:
                patch.setattr(socket, "getaddrinfo", lambda *_, **__: result)
                (exchange,) = await exchanges(f"https://{host}:{server.port}", 1)
            return exchange

    assert asyncio.run(main()).status == status


def test_a_server_that_nobody_vouches_for_gets_no_request(certificate: Path) -> None:
    (exchange,), server = asyncio.run(over_tls(certificate, 1))
    assert (exchange.status, exchange.error_kind) == ("conn_error", "SSLCertVerificationError")
    assert exchange.error is not None and "target.ca_file=PATH, or SSL_CERT_FILE=PATH" in exchange.error
    assert not server.requests


def test_a_private_ca_is_given_by_its_certificates(certificate: Path) -> None:
    (exchange,), _ = asyncio.run(over_tls(certificate, 1, certificates(certificate)))
    assert exchange.status == "ok"


@pytest.mark.parametrize(("scheme", "contexts"), [("https", 1), ("http", 0)])
def test_certificates_are_loaded_once_per_client(
    monkeypatch: pytest.MonkeyPatch, scheme: str, contexts: int
) -> None:
    made: list[ssl.SSLContext] = []

    def counted(**_: object) -> ssl.SSLContext:
        made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", counted)
    Client(client_plan([f"{scheme}://127.0.0.1:9", f"{scheme}://127.0.0.1:10"]), lambda _: None)
    assert len(made) == contexts
    refused = asyncio.run(exchanges(f"{scheme}://127.0.0.1:9", 3))
    assert {exchange.error_kind for exchange in refused} == {"ConnectionRefusedError"}
    assert len(made) == 2 * contexts


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_closed_connections_need_no_garbage_collector(name: str) -> None:
    ours = (Connection, EventReader, Exchange, httptools.HttpResponseParser)
    pieces, status = SCRIPTS[name]
    limit_s = 0.1 if name == "hangs" else PATIENCE_S

    async def main() -> Counter[str]:
        async with MockServer(lambda _: pieces) as server:
            ended: asyncio.Queue[str | None] = asyncio.Queue()
            plan = client_plan([server.url], timeout_s=limit_s)
            client = Client(plan, lambda exchange: ended.put_nowait(exchange.status))
            for seq in range(4):
                client.start(fresh(seq), BODY)
            assert [await ended.get() for _ in range(4)] == [status] * 4
            client.cut_all("interrupted")
            async with asyncio.timeout(PATIENCE_S):
                while client._open:  # noqa: ASYNC110  a client tells in no other way
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)
            return Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in ours)

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(main()) == {}
    finally:
        gc.enable()


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_cutting_ends_a_connect_once_however_far_it_is(runner: Callable[..., Any], turns: int) -> None:
    async def main() -> list[Exchange]:
        results: list[Exchange] = []
        async with MockServer(lambda _: [5.0]) as server:
            client = Client(client_plan([server.url]), results.append)
            client.start(fresh(0), BODY)
            for _ in range(turns):
                await asyncio.sleep(0)
            client.cut_all("interrupted")
            assert len(results) == 1, "at once: whoever cuts counts what has ended"
            await asyncio.sleep(0.05)
        return results

    (exchange,) = runner(main())
    assert exchange.error_kind == "interrupted" and exchange.end_ns is not None


STRANGE = yaml.safe_load((Path(__file__).parents[2] / "data" / "strange_events.yaml").read_text())


@pytest.mark.parametrize("strange", [*STRANGE, b"[" * 100_000], ids=itertools.count())
def test_an_unexpected_type_is_a_bad_event_and_leaves_nothing_behind(strange: Any) -> None:
    pieces = [head(), token(), token(), token(finish="length"), event(strange), usage(3, 3), END]
    (exchange,) = run(lambda _: pieces)
    assert (exchange.status, exchange.error_kind) == ("http_error", "bad_event")
    assert (exchange.tokens, exchange.events, exchange.finish_reason) == (3, 3, "length")
    assert exchange.usage == {"prompt_tokens": 3, "completion_tokens": 3} and exchange.engine is None


def test_null_is_not_given() -> None:
    nothing = {"choices": None, "usage": None, "maxqps": None, "error": None}
    details = {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": None}
    last = {"choices": [], "usage": details, "maxqps": {"steps": None}}
    (exchange,) = run(lambda _: [head(), token(), token(), LAST, event(nothing), event(last), END])
    assert exchange.status == "ok"


@pytest.mark.parametrize(("limit_ns", "connections"), [(PATIENCE_NS, 1), (0, 3)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    limit_ns: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers close idle connections, and a request on a closed one would fail."""
    monkeypatch.setattr(http_client, "IDLE_LIMIT_NS", limit_ns)

    async def opened() -> int:
        async with MockServer() as server:
            assert [one.status for one in await exchanges(server.url, 3)] == ["ok"] * 3
            return server.connections

    assert asyncio.run(opened()) == connections


GZIP = "Content-Encoding: gzip"
KEY = "sk-hush-hush"
BARREN_BYTES = 2**16


def packed_comments(size: int, pieces: int) -> list[bytes]:
    """A gzip stream of so many pieces, each of which holds that many bytes of comments."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    return [packer.compress(b":\n\n" * (size // 3)) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(pieces)]


def moved(where: str) -> list[Any]:
    return [sized(b"", "308 Permanent Redirect", f"Location: {where}")]


FAILED: dict[str, tuple[list[Any], str, str]] = {
    "a redirect": (moved("https://gw/team/v1/"), "308", "give the address that it leads to: https://gw/team"),
    "a relative redirect": (moved("/v2"), "308", "it redirects, which is not followed; "),
    "a redirect with the key": (moved(f"https://gw/?key={KEY}"), "308", "https://gw/?key=[api key]"),
    "a redirect that never ends": (moved("https://gw/" + "a" * 5000), "308", "https://gw/aaa"),
    "a redirect to nowhere": ([sized(b"", "302 Found")], "302", "without saying where"),
    "brotli": ([sized(b"\x8b", "200 OK", "Content-Encoding: br")], "content_encoding", "br cannot be read"),
    "an encoding with the key": (
        [sized(b"x", "200 OK", f"Content-Encoding: {KEY}")],
        *("content_encoding", "[api key] cannot be read"),
    ),
    "no gzip": ([sized(b"plain text", "200 OK", GZIP)], "content_encoding", "damaged"),
    "a bomb": (
        [sized(gzip.compress(b"a" * (UNPACKED_BYTES_LIMIT + 1)), "200 OK", GZIP)],
        *("content_encoding", "longer than"),
    ),
    "a small bomb": (
        [head(extra=f"{GZIP}\r\n"), *map(chunk, packed_comments(BARREN_BYTES // 3, 4)), 600.0],
        *("endless", "without a token"),
    ),
    "a packed error": ([sized(gzip.compress(b"quota of 5"), "429 Slow", GZIP)], "429", "quota of 5"),
    "an error that cannot be read": ([sized(b"\x8b", "403 No", "Content-Encoding: zstd")], "403", "zstd"),
    "no usage": (
        [head(), token(), token(), LAST, END],
        *("no_usage", "nothing counts its tokens; the server must honour stream_options.include_usage"),
    ),
    "an early end": (
        [head(), token(), token(finish="stop"), usage(3, 2), END],
        *("token_count", "2 tokens instead of 3; the server must honour ignore_eos or min_tokens"),
    ),
    "too many tokens": (
        [head(), token() * 3, LAST, usage(3, 4), END],
        *("token_count", "4 tokens instead of 3; the server must honour max_tokens"),
    ),
}


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_says_why_and_what_to_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BARREN_BYTES_LIMIT", BARREN_BYTES)
    pieces, kind, said = FAILED[name]
    first, second = run(lambda _: pieces, 2, access=Access(Secret(KEY)))
    for exchange in (first, second):
        assert exchange.status in ("http_error", "truncated") and exchange.error_kind == kind
        assert exchange.error is not None and said in exchange.error and KEY not in exchange.error
        assert exchange.error.isprintable() and len(exchange.error) < 250


def test_a_server_that_refuses_fields_gets_none_of_them() -> None:
    fields = ["target.omit=[stream_options,ignore_eos,min_tokens,temperature]", "workload=chat_5600_140_api"]
    words = ["engine=external", "target.urls=[https://gw/v1]", *fields]
    longest = "target.max_tokens_field=max_completion_tokens"
    asked = load(words), load([*words, longest])
    made = [Prompts(one.workload, "m", 151936, 1, one.target) for one in asked]
    first, second = (json.loads(prompts.body(7, 20, 5)) for prompts in made)
    assert first | {"max_completion_tokens": 5} == second | {"max_tokens": 5}
    assert set(first) == {"messages", "max_tokens", "model", "stream"}
