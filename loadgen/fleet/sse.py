"""Reads the answer to a request: SSE events from body bytes, into one `Exchange` for each request.

Only events that are not plainly one more token are parsed; what is kept of them has its type."""

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from conf.io.one_line import one_line, printable
from loadgen.fleet.exchange import COUNT_LIMIT, END, WORD_CHARS, Exchange

EVENT_BYTES_LIMIT = 2**17
"""Longest event that is waited for: each stream in flight may hold one (our choice)."""
Redact = Callable[[str], str]
"""Takes the key out of a server's text, before the text is cut."""
CONTENT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")
ENGINE_COUNTS = ("steps", "late_steps", "first_token_us", "last_token_us")
"""Counts that a simulated engine reports at the end of an answer."""
MOST_QUEUE_MS = 1e9
"""Eleven days: a server that tells a longer time in its queue is not believed (our choice)."""
_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)": ?"([^"\\]*(?:\\.[^"\\]*)*)"')
_T = TypeVar("_T")


class ErrorReader:
    """Keeps the beginning of an answer that brings no events but says why; its length is bounded before."""

    __slots__ = ("_body", "_exchange", "_redact")

    def __init__(self, exchange: Exchange, redact: Redact = str) -> None:
        self._exchange = exchange
        self._redact = redact
        self._body = bytearray()

    def feed(self, body: bytes) -> None:
        self._body += body

    def end(self) -> None:
        """Keep the text: only now, for the key may have come in pieces."""
        if self._exchange.error is None and self._body:
            self._exchange.error = one_line(self._redact(_error_text(bytes(self._body))), WORD_CHARS)


class EventReader:
    """Turns body bytes, cut anywhere, into the facts of an `Exchange`.

    Tokens of a stream differ in their text alone: what stood around one must stand around the next, which is
    then compared instead of parsed.
    """

    __slots__ = ("_after", "_before", "_exchange", "_foreign", "_redact", "_rest")

    def __init__(self, exchange: Exchange, redact: Redact = str) -> None:
        self._exchange = exchange
        self._redact = redact
        self._rest = b""
        self._foreign: bytes | None = b""  # what came that is no event; None once there was one
        self._before: bytes | tuple[()] = ()  # nothing starts with it
        self._after = b""

    def feed(self, body: bytes) -> None:
        """Take body bytes, which are one whole event in most cases."""
        if not self._rest and self._is_token(body):
            return
        data = (self._rest + body).replace(b"\r\n", b"\n")
        start = 0
        while (end := data.find(b"\n\n", start) + 2) > 1:
            if end - start <= EVENT_BYTES_LIMIT:
                self._event(data[start:end])
            else:
                self._refuse_long()
            start = end
        self._rest = data[start:]
        if len(self._rest) > EVENT_BYTES_LIMIT:
            self._refuse_long()
            self._rest = b""

    def _refuse_long(self) -> None:
        self._exchange.fail("http_error", "bad_event", f"longer than {EVENT_BYTES_LIMIT} bytes")

    def _is_token(self, event: bytes) -> bool:
        """Take an event in which only the text differs from the last token parsed: some, up to the quote."""
        if (
            event.startswith(self._before)
            and event.endswith(self._after)
            and (start := len(self._before))
            < (end := event.find(b'"', start))
            == len(event) - len(self._after)
        ):
            self._exchange.text.add(event[start : end + 1])
            return True
        return False

    def end(self) -> None:
        """Fail an answer that is no stream, with its beginning; an event that was cut off says nothing."""
        foreign = None if self._foreign is None else (self._foreign + self._rest).strip()
        if foreign and not foreign.startswith((b"data:", b"event:", b"id:", b"retry:", b":")):
            self._exchange.fail("truncated", "not_a_stream", self._redact(_error_text(foreign)))

    def _event(self, event: bytes) -> None:
        exchange = self._exchange
        if self._is_token(event):
            return
        lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        data = b"\n".join(lines)
        if not data:
            if self._foreign is not None and len(self._foreign) < WORD_CHARS and event[:1] != b":":
                self._foreign += event
            return
        self._foreign = None
        if data == b"[DONE]":
            exchange.done = True
            return
        before, place = exchange.text.events, _TEXT.search(event)
        try:
            self._message(_typed(json.loads(data.decode()), dict), place.group(1) if place else b"")
        except (ValueError, RecursionError):
            exchange.fail("http_error", "bad_event", self._redact(data.decode(errors="replace")))
        if place and exchange.text.events > before:
            self._before, self._after = event[: place.start(1)], event[place.end(1) :]

    def _message(self, message: dict[str, Any], raw_text: bytes) -> None:
        """Take all facts of one event with its text as JSON has it, or none; ValueError for a wrong type."""
        exchange = self._exchange
        if (error := _error_in(message)) is not None:
            exchange.fail("http_error", "in_band", self._redact(_words(error)))
            return
        usage, engine = message.get("usage"), message.get("maxqps")
        if usage is not None:
            details = _typed(_typed(usage, dict).get("prompt_tokens_details"), dict)
            usage = _counts(usage, "prompt_tokens", "completion_tokens") | _counts(details, "cached_tokens")
        engine = None if engine is None else _counts(_typed(engine, dict), *ENGINE_COUNTS)
        choice = _typed(next(iter(_typed(message.get("choices"), list)), None), dict)
        reason = _typed(choice.get("finish_reason"), str)
        reason.encode()  # half a surrogate pair is no text and could not be recorded
        output = _output(choice, is_first=not (exchange.text.events or exchange.text.silent))
        exchange.usage = exchange.usage if usage is None else usage
        exchange.engine = exchange.engine if engine is None else engine
        queue_ms = _queue_ms(message.get("metrics"))
        exchange.queue_ms = exchange.queue_ms if queue_ms is None else queue_ms
        if reason:
            exchange.finish_reason = printable(self._redact(reason)[:WORD_CHARS])
        if output:
            exchange.text.add((raw_text or output.encode(errors="replace")).replace(END, b"'") + END)
        elif output is not None and reason:
            exchange.text.silent_end = 1
        elif output is not None:
            exchange.text.silent += 1


def _output(choice: dict[str, Any], *, is_first: bool) -> str | None:
    """The text of a choice; empty for a token that prints nothing, None where there is no output."""
    if choice.get("delta") is None:
        return _typed(choice["text"], str) if "text" in choice else None
    delta = _typed(choice["delta"], dict)
    parts = [delta[key] for key in CONTENT_KEYS if delta.get(key) or delta.get(key) == ""]
    # A chat may begin with an empty delta that names the role and is no token.
    if not parts or (is_first and delta.get("role") and not any(parts) and not choice.get("finish_reason")):
        return None
    return "".join(part if isinstance(part, str) else json.dumps(part) for part in parts)


def _error_in(message: dict[str, Any]) -> Any:
    """The error that an event reports, in any of the forms that servers use; None if it reports none."""
    if message.get("error") is not None:
        return message["error"]
    if message.get("object") == "error":
        return message
    return message.get("detail") if "choices" not in message else None


def _error_text(body: bytes) -> str:
    """The words of an error in a body: its message where the body is JSON that has one, else the body."""
    text = body.decode(errors="replace")
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = _error_in(tree) if isinstance(tree, dict) else None
    return text if error is None else _words(error)


def _words(error: Any) -> str:
    """The message of an error alone, or all of the error where it has none, such as a list of misfits."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) and message else json.dumps(error)


def _queue_ms(metrics: Any) -> float | None:
    """The time in vLLM's queue (`--enable-per-request-metrics`); None for what is no such time."""
    reported_ms = metrics.get("queue_time_ms") if isinstance(metrics, dict) else None
    if isinstance(reported_ms, bool) or not isinstance(reported_ms, int | float):
        return None
    return float(reported_ms) if 0 <= reported_ms <= MOST_QUEUE_MS else None


def _typed(value: Any, kind: type[_T]) -> _T:
    """The value itself, or an empty one for null; ValueError if it is of another type."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise ValueError(f"{type(value).__name__} instead of {kind.__name__}")
    return value


def _counts(tree: dict[str, Any], *names: str) -> dict[str, int]:
    """The named counts that are given; ValueError if one is no int (a bool is none) or too large."""
    counts = {name: tree[name] for name in names if tree.get(name) is not None}
    if not all(type(count) is int and 0 <= count < COUNT_LIMIT for count in counts.values()):
        raise ValueError(f"not counts: {counts}")
    return counts
