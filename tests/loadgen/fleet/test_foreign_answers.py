"""loadgen/fleet/http_connection.py: which answers of gateways are taken, and what is said of the others."""

import asyncio
import gzip
import json
import zlib
from typing import Any

import pytest

from conf import load
from conf.io.http_get import Access
from conf.io.secret import Secret
from loadgen.fleet import http_connection
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_connection import UNPACKED_BYTES_LIMIT
from loadgen.prompts.bodies import Prompts
from tests.support.servers.mock_exchanges import exchanges, run
from tests.support.servers.mock_server import END, MockServer, head, token, usage

LAST = token(finish="length")
GZIP = "Content-Encoding: gzip\r\n"
KEY = "sk-hush-hush"
BARREN_BYTES = 2**16


def closed(status: str, body: bytes, *lines: str) -> list[Any]:
    """A whole answer with its length."""
    length = f"Content-Length: {len(body)}"
    return ["\r\n".join([f"HTTP/1.1 {status}", *lines, length, "", ""]).encode() + body]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def packed_comments(size: int, pieces: int) -> list[bytes]:
    """A gzip stream of so many pieces, each of which holds that many bytes of comments."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    return [packer.compress(b":\n\n" * (size // 3)) + packer.flush(zlib.Z_SYNC_FLUSH) for _ in range(pieces)]


def moved(where: str) -> list[Any]:
    return closed("308 Permanent Redirect", b"", f"Location: {where}")


FAILED: dict[str, tuple[list[Any], str, str]] = {
    "a redirect": (moved("https://gw/team/v1/"), "308", "give the address that it leads to: https://gw/team"),
    "a relative redirect": (moved("/v2"), "308", "it redirects, which is not followed; "),
    "a redirect with the key": (moved(f"https://gw/?key={KEY}"), "308", "https://gw/?key=[api key]"),
    "a redirect that never ends": (moved("https://gw/" + "a" * 5000), "308", "https://gw/aaa"),
    "a redirect to nowhere": (closed("302 Found", b""), "302", "without saying where"),
    "brotli": (closed("200 OK", b"\x8b", "Content-Encoding: br"), "content_encoding", "br cannot be read"),
    "an encoding with the key": (
        closed("200 OK", b"x", f"Content-Encoding: {KEY}"),
        *("content_encoding", "[api key] cannot be read"),
    ),
    "no gzip": (closed("200 OK", b"plain text", GZIP.strip()), "content_encoding", "damaged"),
    "a bomb": (
        closed("200 OK", gzip.compress(b"a" * (UNPACKED_BYTES_LIMIT + 1)), GZIP.strip()),
        *("content_encoding", "longer than"),
    ),
    "a small bomb": (
        [head(extra=GZIP), *[chunk(packed) for packed in packed_comments(BARREN_BYTES // 3, 4)], 600.0],
        *("endless", "without a token"),
    ),
    "a packed error": (closed("429 Slow", gzip.compress(b"quota of 5"), GZIP.strip()), "429", "quota of 5"),
    "an error that cannot be read": (closed("403 No", b"\x8b", "Content-Encoding: zstd"), "403", "zstd"),
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


def test_a_compressed_answer_is_read_and_its_connection_kept() -> None:
    events = b"".join(piece.split(b"\r\n")[1] for piece in (token(), token(), LAST, usage(3, 3)))
    packed = gzip.compress(events + b"data: [DONE]\n\n")

    async def main() -> tuple[list[Exchange], MockServer]:
        async with MockServer(lambda _: closed("200 OK", packed, GZIP.strip())) as server:
            return await exchanges(server.url, 2), server

    ended, server = asyncio.run(main())
    assert [(one.status, one.tokens, one.reads) for one in ended] == [("ok", 3, 1)] * 2
    assert server.connections == 1
    assert all(b"\r\nAccept-Encoding: identity\r\n" in request for request, _ in server.requests)


def test_a_server_that_refuses_fields_gets_none_of_them() -> None:
    fields = ["target.omit=[stream_options,ignore_eos,min_tokens,temperature]", "workload=chat_5600_140_api"]
    words = ["engine=external", "target.urls=[https://gw/v1]", *fields]
    longest = "target.max_tokens_field=max_completion_tokens"
    plain, other = load(words), load([*words, longest])
    made = (
        Prompts(plain.workload, "m", 151936, 1, plain.target),
        Prompts(other.workload, "m", 151936, 1, other.target),
    )
    first, second = (json.loads(prompts.body(7, 20, 5)) for prompts in made)
    assert first | {"max_completion_tokens": 5} == second | {"max_tokens": 5}
    assert set(first) == {"messages", "max_tokens", "model", "stream"}
