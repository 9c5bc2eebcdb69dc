"""loadgen/fleet/sse.py: answers cut anywhere leave the same record, answers broken anyhow leave one."""

import asyncio
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.fleet.exchange import Exchange
from loadgen.fleet.sse import EVENT_BYTES_LIMIT, EventReader
from loadgen.traffic.schedule import Planned
from tests.support.servers.lines import Line
from tests.support.servers.mock_server import END, chunk, event, head, sized, token, usage

STATUSES = {"ok", "http_error", "truncated", "timeout", "conn_error"}


def record(line: Line, pieces: list[bytes], lost: Exception | None = None) -> dict[str, Any]:
    """What is recorded when these pieces arrive and then the connection goes away."""
    for piece in pieces:
        line.connection.data_received(piece)
    line.connection.connection_lost(lost)
    exchange = line.ended.pop()
    assert not line.ended and exchange is line.exchange and exchange.end_ns is not None
    assert (exchange.first_token_ns is None) == (exchange.last_token_ns is None) == (not exchange.events)
    assert exchange.reads <= exchange.events
    names = ("status", "error_kind", "error", "http_status", "replica_id", "finish_reason")
    return {name: getattr(exchange, name) for name in (*names, "usage", "engine", "events", "done", "tokens")}


def records(*answers: list[bytes], lost: Exception | None = None) -> list[dict[str, Any]]:
    """What is recorded of each answer, given in pieces."""

    async def main() -> list[dict[str, Any]]:
        first = Line(3)
        return [record(Line(3, first), answer, lost) for answer in answers]

    return asyncio.run(main())


def completion(text: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk as vLLM's completions API sends it."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    choice |= {"prompt_token_ids": None, "token_ids": None}
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "choices": [choice],
        "usage": None,
    } | more


def chat(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk as vLLM's chat API sends it."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "choices": [choice]}


def counts(cached: int | None = None, output: int = 3) -> dict[str, Any]:
    details = {"prompt_tokens_details": {"cached_tokens": cached}} if cached is not None else {}
    tree = {"prompt_tokens": 5, "total_tokens": 5 + output, "completion_tokens": output, **details}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "choices": [], "usage": tree}


def sse(*messages: Any, newline: str = "\n", spaced: bool = False) -> bytes:
    """Events of JSON, with [DONE] at the end."""
    separators = (", ", ": ") if spaced else (",", ":")
    lines = [f"data: {json.dumps(message, separators=separators)}{newline * 2}" for message in messages]
    return ("".join(lines) + f"data: [DONE]{newline * 2}").encode()


def chunks(*bodies: bytes) -> bytes:
    return b"".join(map(chunk, bodies)) + b"0\r\n\r\n"


def zipped(wbits: int) -> list[bytes]:
    """The events of a whole answer, each compressed into bytes that can be unpacked at once."""
    pack = zlib.compressobj(wbits=wbits)
    events = [event + b"\n\n" for event in sse(*TEXTS, counts()).split(b"\n\n")[:-1]]
    return [pack.compress(event) + pack.flush(zlib.Z_SYNC_FLUSH) for event in events]


TEXTS = completion(" a"), completion(' "b\\ é'), completion("", "length")
WORDS = chat(role="assistant", content=""), chat(content="x"), chat(content="y"), chat("length", content="z")
BARE = [{"choices": [{"index": 0, "text": " a"}]}] * 2 + [
    {"choices": [{"index": 0, "text": " b", "finish_reason": "length"}]}
]
ANSWER = sse(*BARE, counts())
WHOLE = sized(ANSWER)
ERROR = '{"error":{"message":"überlastet"}}'.encode()
GOOD: dict[str, bytes] = {
    "completions": head(extra="X-Replica-Id: r1\r\n")
    + b"".join(event(message) for message in (*TEXTS, counts(cached=2)))
    + END,
    "chat": head() + b"".join(event(message) for message in (*WORDS, counts())) + END,
    "reasoning": head()
    + chunks(
        sse(
            chat(reasoning_content="x", content=None),
            chat(content="y"),
            chat("stop", content="z"),
            counts(),
        )
    ),
    "CRLF, comments and other fields": head()
    + chunks(b": ping\r\n\r\nevent: token\r\n" + sse(*TEXTS, counts(), newline="\r\n")),
    "JSON with spaces": head() + chunks(sse(*TEXTS, counts(), spaced=True)),
    "no nulls, so that the last token ends as the others do": head() + chunks(ANSWER),
    "empty deltas between": head() + chunks(sse(*WORDS[:2], chat(), chat(content=""), *WORDS[2:], counts())),
    "usage in every event": head()
    + chunks(sse(*[text | counts(output=i) | text for i, text in enumerate(TEXTS)], counts())),
    "several events in a chunk, one over two, extension and trailer": head()
    + chunks(ANSWER[:-20], ANSWER[-20:]).replace(b"14\r\n", b"14;a=b\r\n")[:-2]
    + b"X-End: 1\r\n\r\n",
    "content length": WHOLE,
    "closed at the end": b"HTTP/1.0 200 OK\r\n\r\n" + ANSWER,
    "early hints": b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + WHOLE,
    "201": head("201 Created") + chunks(ANSWER),
    "gzip": head(extra="Content-Encoding: gzip\r\n") + chunks(*zipped(31)),
    "deflate": head(extra="content-encoding: Deflate\r\n") + chunks(*zipped(15)),
    "gzip in one piece": head(extra="Content-Encoding: gzip\r\n") + chunks(b"".join(zipped(31))),
    "garbage behind": WHOLE + b"\x00garbage",
    "more than was announced": WHOLE + b"HTTP/1.1 500 Oh\r\n\r\n" + head(),
}
"""Answers of three events that are whole."""
STREAMS: dict[str, tuple[bytes, str, str | None, int]] = {
    **{name: (stream, "ok", None, 3) for name, stream in GOOD.items()},
    "closed before the end": (b"HTTP/1.0 200 OK\r\n\r\n" + sse(*TEXTS)[:-20], "truncated", "no_done", 2),
    "not streamed": (sized(json.dumps(counts()).encode()), "truncated", "not_a_stream", 0),
    "a page with empty lines": (
        sized(b"<html>\r\n\r\n<body>Log in\r\n\r\n</body>\r\n</html>"),
        *("truncated", "not_a_stream", 0),
    ),
    "an error of the old form": (
        head() + event({"object": "error", "message": "unexpected token 200002", "code": 500}) + END,
        *("http_error", "in_band", 0),
    ),
    "an error that is only a detail": (
        head() + event({"detail": "no such model"}) + END,
        *("http_error", "in_band", 0),
    ),
    "in-band error": (
        head() + event(TEXTS[0]) + event({"error": {"message": "boom", "code": 500}}) + END,
        *("http_error", "in_band", 1),
    ),
    "bad event": (head() + event(TEXTS[0]) + event(b'{"choices":') + END, "http_error", "bad_event", 1),
    "no terminating chunk": (
        head() + token() + token() + token(finish="length") + usage(5, 3) + END[:-5],
        *("truncated", "connection_lost", 3),
    ),
    "no finish reason": (
        head() + chunks(sse(*BARE[:2] * 2, counts(output=4))),
        "truncated",
        "no_finish_reason",
        4,
    ),
    "nothing but a count": (head() + chunks(sse(counts())), "truncated", "no_token", 0),
    "fewer empty texts than the count": (
        head() + chunks(sse(completion(""), completion("", "length"), counts(output=5))),
        *("truncated", "no_token", 0),
    ),
    "half a chunk": (head() + token() + token()[:-9], "truncated", "connection_lost", 1),
    "503": (sized(ERROR, "503 Service Unavailable"), "http_error", "503", 0),
    "500 until closed": (b"HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n" + ERROR, "http_error", "500", 0),
    "gzip, cut off": (
        head(extra="Content-Encoding: gzip\r\n") + chunks(*zipped(31)[:-1]),
        *("truncated", "no_done", 3),
    ),
    "br": (head(extra="Content-Encoding: br\r\n") + chunks(b"\x8b"), "http_error", "content_encoding", 0),
    "redirect": (
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /v2\r\nContent-Length: 0\r\n\r\n",
        *("http_error", "307", 0),
    ),
    "nothing but a head": (head(), "truncated", "connection_lost", 0),
    "half a head": (head()[:-9], "conn_error", "connection_lost", 0),
    "nothing": (b"", "conn_error", "connection_lost", 0),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "conn_error", "bad_http", 0),
    "bad chunk length": (head() + token() + b"zz\r\n", "conn_error", "bad_http", 1),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_cut_anywhere_is_recorded_the_same(name: str) -> None:
    stream, status, kind, events = STREAMS[name]
    (whole,) = records(pieces(stream, []))
    assert (whole["status"], whole["error_kind"], whole["events"]) == (status, kind, events)
    for at, cut in enumerate(records(*[pieces(stream, [at]) for at in range(len(stream))])):
        assert cut == whole, at
    assert records(pieces(stream, list(range(len(stream))))) == [whole]


def test_what_is_recorded_of_a_whole_answer() -> None:
    (recorded,) = records([STREAMS["completions"][0]])
    assert recorded == {
        "status": "ok",
        "error_kind": None,
        "error": None,
        "http_status": 200,
        "replica_id": "r1",
        "finish_reason": "length",
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "cached_tokens": 2},
        "engine": None,
        "events": 3,
        "done": True,
        "tokens": 3,
    }


@pytest.mark.parametrize(
    ("metrics", "queue_ms"),
    [
        ('{"time_to_first_token_ms": 85.2, "queue_time_ms": 12.3}', 12.3),  # vLLM's documentation
        ('{"queue_time_ms": 0}', 0.0),
        *[(f'{{"queue_time_ms": {told}}}', None) for told in ("null", "true", '"1"', "-1", "NaN", "1e99")],
        *[(other, None) for other in ("{}", "null", "[1]", '"fast"')],
    ],
)
def test_the_time_in_the_queue_is_read_and_nothing_else_by_that_word_fails_an_answer(
    metrics: str, queue_ms: float | None
) -> None:
    exchange = Exchange(Planned(0, 0, "window", 0, 1, 1))
    usage = '"usage":{"prompt_tokens":5,"completion_tokens":1}'
    EventReader(exchange).feed(f'data: {{"choices":[],{usage},"metrics":{metrics}}}\n\n'.encode())
    assert (exchange.queue_ms, exchange.status) == (queue_ms, None)
    assert exchange.usage == {"prompt_tokens": 5, "completion_tokens": 1}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (STREAMS["503"][0], "überlastet"),
        (STREAMS["in-band error"][0], "boom"),
        (STREAMS["an error of the old form"][0], "unexpected token 200002"),
        (STREAMS["an error that is only a detail"][0], "no such model"),
        (STREAMS["a page with empty lines"][0], "<html> <body>Log in </body> </html>"),
        (sized(b'{"object":"error","message":"busy","code":503}'), "busy"),
        (sized(b'{"detail":[{"loc":["body"]}]}', "422"), '[{"loc": ["body"]}]'),
        (sized(b'{"detail":"\\ud800 \\u001b no"}', "400"), "no"),
        (sized(b"not { JSON", "500"), "not { JSON"),
        (sized(b"[" * 50_000, "500"), f"{'[' * 200} ..."),
    ],
)
def test_the_words_of_an_error_are_kept_in_whatever_form_they_come(answer: bytes, words: str) -> None:
    (recorded,) = records([answer])
    assert recorded["error"] == words


@pytest.mark.parametrize(("name", "status"), [("closed at the end", "truncated"), ("nothing", "conn_error")])
def test_an_answer_until_the_end_is_not_whole_when_the_connection_is_reset(name: str, status: str) -> None:
    (recorded,) = records([STREAMS[name][0]], lost=ConnectionResetError(104, "reset"))
    assert (recorded["status"], recorded["error_kind"]) == (status, "connection_lost")
    assert "reset" in recorded["error"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("completions", 1),
        ("content length", 1),
        ("gzip in one piece", 1),
        ("503", 1),
        ("garbage behind", 0),
        ("more than was announced", 0),
    ],
)
def test_only_a_connection_in_order_is_kept(name: str, kept: int) -> None:
    async def main() -> int:
        line = Line(3)
        line.connection.data_received(STREAMS[name][0])
        return sum(map(len, line.client._idle.values()))

    assert asyncio.run(main()) == kept


def test_an_endless_event_is_not_collected() -> None:
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    (recorded,) = records([head(), *[piece] * (EVENT_BYTES_LIMIT // 65536 + 1)])
    assert (recorded["status"], recorded["error_kind"]) == ("http_error", "bad_event")


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    parts = [stream[start:end] for start, end in zip(bounds, bounds[1:], strict=False)]
    return [part for part in parts if part]


CUTS = st.lists(st.integers(1, 2000), max_size=12)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A stream with some of its bytes overwritten, left out, repeated or added."""
    stream = STREAMS[draw(st.sampled_from(sorted(STREAMS)))][0]
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(stream)))
        end = draw(st.integers(start, min(len(stream), start + 80)))
        middle = draw(
            st.sampled_from(
                [b"", stream[start:end] * 2, b"\r\n", b"\n\n", b"\r\n0\r\n\r\n", b'"', b"\xff\x00"]
            )
        )
        stream = stream[:start] + (middle or draw(st.binary(max_size=8))) + stream[end:]
    return stream


ENDS = st.sampled_from([None, ConnectionResetError(104, "reset"), OSError(110, "timed out")])


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(
    st.one_of(broken(), st.binary(max_size=200), st.builds(head().__add__, st.binary(max_size=200))),
    CUTS,
    ENDS,
)
def test_broken_bytes_are_one_row_with_a_kind(stream: bytes, cuts: list[int], lost: Exception | None) -> None:
    (recorded,) = records(pieces(stream, cuts), lost=lost)
    assert recorded["status"] in STATUSES
    assert (recorded["error_kind"] is None) == (recorded["status"] == "ok")
    json.dumps(recorded).encode()


@settings(max_examples=100, deadline=None)
@given(broken(), CUTS, st.integers(0, 12))
def test_a_deadline_in_the_middle_ends_a_request_once(stream: bytes, cuts: list[int], at: int) -> None:
    async def main() -> Line:
        line, parts = Line(3), pieces(stream, cuts)
        for part in parts[:at]:
            line.connection.data_received(part)
        line.connection.cut("timeout", "deadline")
        record(line, parts[at:])
        return line

    line = asyncio.run(main())
    assert line.exchange.status in STATUSES
