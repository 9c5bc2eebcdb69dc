"""What a request became, and how its answer is read: one `Exchange`, and SSE events from body bytes.

Knows the events of an OpenAI-compatible server; knows no socket, schedule or record. Only events
that are not plainly one more token are parsed, and what is kept of them has the type it should have.
"""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

ERROR_CHARS = 200
CONTENT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")
COUNT_LIMIT = 2**31
"""Counts are kept as 32 bits with a sign; a server that says more is not believed."""
_ORDINARY = b'"finish_reason":null'
_T = TypeVar("_T")


@dataclass(slots=True)
class Exchange:
    """What happened to one request; times are monotonic ns, None where the event never came.

    `sent_ns` is when the client did its part: wrote the request to a kept connection, or began to
    open a new one. How long the server and the network then take to accept is not its lateness.
    """

    seq: int
    expected_tokens: int
    sent_ns: int | None = None
    first_byte_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    status: str | None = None
    error_kind: str | None = None
    error: str | None = None
    http_status: int | None = None
    replica_id: str | None = None
    finish_reason: str | None = None
    usage: dict[str, int] | None = None
    engine: dict[str, int] | None = None
    events: int = 0
    reads: int = 0
    done: bool = False
    token_reads_ns: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Output tokens: the server's count when it came, else the events seen so far."""
        return (self.usage or {}).get("completion_tokens", self.events)

    def fail(self, status: str, kind: str, error: str | None = None) -> None:
        """Record the first reason of a failure; a later one never replaces it."""
        if self.status is None:
            self.status, self.error_kind = status, kind
            self.error = error[:ERROR_CHARS] if error else self.error

    def judge(self) -> None:
        """Name the outcome of a complete answer: ok only with [DONE], usage and the asked tokens."""
        if self.http_status != 200:
            self.fail("http_error", str(self.http_status))
        elif not self.events:
            self.fail("truncated", "no_token")
        elif not self.done:
            self.fail("truncated", "no_done")
        elif self.usage is None:
            self.fail("truncated", "no_usage")
        elif self.tokens != self.expected_tokens:
            self.fail("truncated", "token_count", f"{self.tokens} tokens instead of {self.expected_tokens}")
        elif self.status is None:
            self.status = "ok"


class EventReader:
    """Turns body bytes, cut anywhere, into the facts of an `Exchange`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._rest = b""

    def feed(self, body: bytes, now_ns: int) -> None:
        """Take the body bytes of one socket read that happened at `now_ns`."""
        data = self._rest + body if self._rest else body
        if b"\r" in data:
            # Hold back a final CR: its LF may come with the next read.
            held = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n") if not held else data[:-1].replace(b"\r\n", b"\n") + b"\r"
        end = data.rfind(b"\n\n")
        if end < 0:
            self._rest = data
            return
        complete, self._rest = data[:end], data[end + 2 :]
        exchange, before = self._exchange, self._exchange.events
        count = complete.count(b"\n\n") + 1
        if exchange.events and complete.count(_ORDINARY) == count and b'"error"' not in complete:
            exchange.events += count
        else:
            for event in complete.split(b"\n\n"):
                self._event(event)
        if exchange.events > before:
            if exchange.first_token_ns is None:
                exchange.first_token_ns = now_ns
            exchange.last_token_ns = now_ns
            exchange.reads += 1
            exchange.token_reads_ns.append(now_ns)

    def _event(self, event: bytes) -> None:
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(lines)
        if not data:
            return
        if data == b"[DONE]":
            self._exchange.done = True
            return
        try:
            self._message(_typed(json.loads(data), dict))
        except (ValueError, RecursionError):
            self._exchange.fail("http_error", "bad_event", data[:ERROR_CHARS].decode(errors="replace"))

    def _message(self, message: dict[str, Any]) -> None:
        """Take what one event says, or nothing of it; ValueError if it has a type it must not have."""
        exchange = self._exchange
        if message.get("error") is not None:
            exchange.fail("http_error", "in_band", json.dumps(message["error"]))
            return
        tree = _typed(message.get("usage"), dict)
        usage = _counts(tree, "prompt_tokens", "completion_tokens")
        usage |= _counts(_typed(tree.get("prompt_tokens_details"), dict), "cached_tokens")
        engine = _counts(_typed(message.get("maxqps"), dict), "steps", "late_steps")
        choice = _typed(next(iter(_typed(message.get("choices"), list)), None), dict)
        reason = _typed(choice.get("finish_reason"), str)
        reason.encode()  # half a surrogate pair is no text and could not be recorded
        output = _carries_output(choice)
        if message.get("usage") is not None:
            exchange.usage = usage
        if message.get("maxqps") is not None:
            exchange.engine = engine
        exchange.finish_reason = reason or exchange.finish_reason
        exchange.events += output


def _carries_output(choice: dict[str, Any]) -> bool:
    """True for a completion's text (even empty: some tokens print nothing) and a delta with content."""
    if choice.get("delta") is not None:
        delta = _typed(choice["delta"], dict)
        return any(delta.get(key) for key in CONTENT_KEYS)
    return "text" in choice


def _typed(value: Any, kind: type[_T]) -> _T:
    """The value itself, or an empty one for null; ValueError if it is of another type."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _counts(tree: dict[str, Any], *names: str) -> dict[str, int]:
    """Those of the named counts that are given; ValueError if one is no int (a bool is none) or too large."""
    counts = {name: tree[name] for name in names if tree.get(name) is not None}
    if not all(type(count) is int and 0 <= count < COUNT_LIMIT for count in counts.values()):
        raise ValueError(f"not counts: {counts}")
    return counts
