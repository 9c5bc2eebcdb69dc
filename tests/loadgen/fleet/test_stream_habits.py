"""loadgen/fleet/sse.py: habits of servers in streaming an answer come out right, void or refused.

Reads arrive at instants of a clock that the test sets. The engine of every habit makes its first token after
50 ms and then one each 10 ms. The truth are the TTFT and TPOT of the tokens that a user gets to see.
"""

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from analysis.capacity.checks import judge_window
from analysis.capacity.window_counts import Window
from analysis.rows import metrics, records
from analysis.rows.parquet import BoundedWords
from analysis.stats.quantiles import quantile
from conf.specs.experiment import Slo
from loadgen.fleet import http_client, http_connection
from loadgen.fleet.exchange import Exchange
from loadgen.fleet.rows import Clock, GapRecord, batch
from loadgen.traffic.schedule import NS
from tests.support.servers.lines import Line

MS = 1_000_000
FIRST_MS, STEP_MS, TOKENS, PROMPT = 50.0, 10.0, 140, 500
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n"
Read = tuple[float, bytes]
"""Bytes that arrive at an instant in ms after the request's due time."""
WORDS = "the quick brown fox jumps over that lazy dog and finds 12 new friends in Oslo".split()  # noqa: SIM905


def event(tree: Any) -> bytes:
    data = tree if isinstance(tree, bytes) else json.dumps(tree, ensure_ascii=False).encode()
    return b"data: " + data + b"\n\n"


def completion(text: str | None, finish: str | None = None, **more: Any) -> bytes:
    """An event as long as vLLM's, some 230 bytes."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    about = {"id": "cmpl-8f2b6d3c9d5e4c0fa1b2c3d4e5f60718", "object": "text_completion", "created": 1764}
    return event(about | {"model": "m", "choices": [choice | {"token_ids": None}], "usage": None} | more)


def chat(finish: str | None = None, **delta: Any) -> bytes:
    return event({"id": "chat-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def at_ms(token: int) -> float:
    """The instant at which the engine has made a token, from 0."""
    return FIRST_MS + STEP_MS * token


def usage(tokens: int) -> dict[str, Any]:
    return {"usage": {"prompt_tokens": PROMPT, "completion_tokens": tokens}}


def closing(tokens: int = TOKENS, at: float | None = None) -> list[Read]:
    """The count and the end of a stream, when the last token is made or later."""
    counted = event({"choices": []} | usage(tokens)) + event(b"[DONE]")
    return [(at_ms(tokens - 1) if at is None else at, counted)]


def words(count: int) -> list[str]:
    return [f" {WORDS[i % len(WORDS)]}" for i in range(count)]


def streamed(
    texts: Sequence[str], tokens: Sequence[int] | None = None, every: Any = completion
) -> list[Read]:
    """An event for each text, at the instant of the token that is the last in it: each its own by default."""
    tokens = range(len(texts)) if tokens is None else tokens
    ends = [None] * (len(texts) - 1) + ["length"]
    return [(at_ms(token), every(*pair)) for token, *pair in zip(tokens, texts, ends, strict=True)]


def grouped(sizes: Iterable[int], texts: Sequence[str]) -> list[Read]:
    """Events of so many tokens each."""
    ends = list(accumulate(sizes))
    starts = [0, *ends]
    joined = ["".join(texts[start:end]) for start, end in zip(starts, ends, strict=False)]
    return streamed(joined, [end - 1 for end in ends])


def held(reads: Sequence[Read], size: int) -> list[Read]:
    """A gateway that hands on `size` bytes at a time, when they are full, and the rest at the end."""
    out, kept = [], b""
    for at, data in reads:
        kept += data
        while len(kept) >= size:
            out.append((at, kept[:size]))
            kept = kept[size:]
    return [*out, (reads[-1][0], kept)]


def flushed(reads: Sequence[Read], period_ms: float) -> list[Read]:
    """A gateway that hands on what it has at each multiple of a period."""
    due: dict[float, bytes] = {}
    for at, data in reads:
        when = -(-at // period_ms) * period_ms
        due[when] = due.get(when, b"") + data
    return sorted(due.items())


def split_bytes(reads: Sequence[Read], size: int) -> list[Read]:
    return [(at, data[i : i + size]) for at, data in reads for i in range(0, len(data), size)]


def late(reads: Sequence[Read], by_ms: float) -> list[Read]:
    return [(at + by_ms, data) for at, data in reads]


PLAIN = words(TOKENS)
ONES = ["a"] * TOKENS
HAN = list("今日は天気がいいので散歩に出かけました" * 8)[:TOKENS]
TRUE = FIRST_MS, STEP_MS


def plain(texts: Sequence[str] = PLAIN) -> list[Read]:
    return [*streamed(texts), *closing()]


def reasoning() -> list[Read]:
    half = [(at_ms(i), chat(reasoning_content=text)) for i, text in enumerate(PLAIN[:70])]
    rest = [(at_ms(i), chat("stop" if i == 139 else None, content=PLAIN[i])) for i in range(70, TOKENS)]
    return [(5, chat(role="assistant", content="")), *half, *rest, *closing()]


def speculative(seed: int = 7) -> list[Read]:
    draw, sizes = random.Random(seed), [1]
    while sum(sizes) < TOKENS:
        sizes.append(min(draw.choice([1, 1, 2, 3, 4]), TOKENS - sum(sizes)))
    return [*grouped(sizes, PLAIN), *closing()]


def chat_events(texts: Sequence[str]) -> list[Read]:
    role = (5.0, chat(role="assistant", content=""))
    deltas = streamed(texts, every=lambda text, end: chat(end, content=text))
    return [role, *deltas, *closing()]


def tool_call(text: str, end: str | None) -> bytes:
    return chat(end, tool_calls=[{"index": 0, "function": {"arguments": text}}])


def counted_in_each(sizes: Sequence[int], texts: Sequence[str]) -> list[Read]:
    """Events with the count so far, whose text says nothing of the number of tokens."""
    ends = list(accumulate(sizes))
    return [
        *[(at_ms(end - 1), completion(texts[i], **usage(end))) for i, end in enumerate(ends[:-1])],
        (at_ms(TOKENS - 1), completion(texts[-1], "length", **usage(TOKENS))),
        *closing(),
    ]


def with_role_in_each(reads: Sequence[Read]) -> list[Read]:
    """A chat whose every delta names the role, as some servers send it."""
    return [(at, data.replace(b'"delta": {', b'"delta": {"role": "assistant", ')) for at, data in reads]


def escaped(reads: Sequence[Read]) -> list[Read]:
    """The same events with every character beyond ASCII as JSON escapes it."""
    return [
        (at, "".join(c if c < "\x80" else f"\\u{ord(c):04x}" for c in data.decode()).encode())
        for at, data in reads
    ]


THIRDS = ["" if i % 3 == 2 else w for i, w in enumerate(PLAIN)]
HALF = [70, *[1] * 70]
INTERVAL = [1, *[10] * 13, 9]
CUMULATIVE = ["".join(ONES[: i + 1]) for i in range(TOKENS)]
RIGHT: dict[str, list[Read]] = {
    "an event a token": plain(),
    "one letter a token": plain(ONES),
    "an unspaced script": plain(HAN),
    "chat, the role first": chat_events(PLAIN),
    "chat, an empty delta before each token": [
        (at, chat(content="") + data) if b'"delta"' in data else (at, data) for at, data in chat_events(PLAIN)
    ],
    "reasoning is streamed": reasoning(),
    "arguments of a tool": [*streamed(PLAIN, every=tool_call), *closing()],
    "the last token prints nothing": plain([*PLAIN[:-1], ""]),
    "every third token prints nothing": plain(THIRDS),
    "the same in a chat, the role in each delta": with_role_in_each(chat_events(THIRDS)),
    "the same, the finish reason in a delta of its own": [
        *chat_events(THIRDS)[:-2],
        (at_ms(139), chat(content="")),
        (at_ms(139), chat("length", content="")),
        *closing(),
    ],
    "two words, and then tokens that print nothing": plain([*PLAIN[:2], *[""] * 138]),
    "no token prints anything": plain([""] * TOKENS),
    "the finish reason 300 ms later, without text": [
        *streamed(PLAIN),
        (at_ms(TOKENS + 29), completion("", "length")),
        *closing(at=at_ms(TOKENS + 29)),
    ],
    "the count 300 ms later": [*streamed(PLAIN), *closing(at=at_ms(TOKENS + 29))],
    "the count with the last token": [
        *streamed(PLAIN)[:-1],
        (at_ms(139), completion(PLAIN[-1], "length", **usage(TOKENS))),
        *closing(),
    ],
    "the count so far in each event": counted_in_each([1] * TOKENS, PLAIN),
    "comments and other fields": [(at, b": ping\n\nevent: token\nid: 7\n" + data) for at, data in plain()],
    "comments long before the first token": [(5, b": wait\n\n"), (25, b": wait\n\n"), *plain()],
    "lines end with CRLF": [(at, data.replace(b"\n", b"\r\n")) for at, data in plain()],
    "events cut into pieces of 7 bytes": split_bytes(plain(), 7),
    "two events a token": [
        *streamed([half for w in PLAIN for half in (w[:2], w[2:] or ".")], [i // 2 for i in range(280)]),
        *closing(),
    ],
    "every event holds the whole text so far": plain(CUMULATIVE),
    "speculative decoding": speculative(),
    "stream interval 10, the first token alone": [*grouped(INTERVAL, PLAIN), *closing()],
    "half of the answer in the last event": [*grouped([*[1] * 70, 70], PLAIN), *closing()],
}
"""Habits whose TTFT and TPOT are those of the first token and of a step."""
FELT: dict[str, tuple[list[Read], tuple[float, float]]] = {
    **{habit: (reads, TRUE) for habit, reads in RIGHT.items()},
    "an empty text long before the first token": ([(3, completion("")), *late(plain(), 1000)], (1050, 10)),
    "the first token prints nothing": (plain(["", *PLAIN[1:]]), (60, 10)),
    "emoji of several tokens, the empty ones not sent": (
        [*streamed(["\N{GRINNING FACE}"] * 47, [*range(2, 138, 3), 139]), *closing()],
        (70, 10),
    ),
    "escaped, twenty tokens in the first event": (
        escaped([*grouped([20, *[1] * 120], HAN), *closing()]),
        (at_ms(19), 10),
    ),
    "events cut across reads": (held(plain(), 300), (60, 10)),
    "stream interval 10": ([*grouped([10] * 14, PLAIN), *closing()], (140, 10)),
    "stream interval 4, one letter a token": ([*grouped([4] * 35, ONES), *closing()], (80, 10)),
    "a gateway of 4 KB": (held(plain(), 4096), (210, 10)),
    "a gateway of 8 KB": (held(plain(), 8192), (370, 10)),
    "a gateway that flushes each 100 ms": (flushed(plain(), 100.0), (100, 1400 / 134)),
    "a stall of a second": ([*plain()[:70], *late(plain()[70:], 1000)], (50, 10 + 1000 / 139)),
    "a tenth of the reasoning is hidden": ([*streamed(PLAIN[14:], range(14, TOKENS)), *closing()], (190, 10)),
}
"""Habits with the TTFT and TPOT that a user feels."""

VOID: dict[str, dict[str, list[Read]]] = {
    "burst_delivery": {
        "half of the tokens come in the first event": [*grouped(HALF, PLAIN), *closing()],
        "a gateway of 16 KB": held(plain(), 16384),
        "clumps of a third": held(plain(ONES), sum(len(data) for _, data in plain(ONES)) // 3),
        "the whole answer at once": [(at_ms(139), b"".join(data for _, data in plain()))],
        "one token, and the rest at the end": [
            plain()[0],
            (at_ms(139), b"".join(data for _, data in plain()[1:])),
        ],
        "held to the end, then event by event": [
            (at_ms(139) + 0.02 * i, data) for i, (_, data) in enumerate(plain())
        ],
        "held to the end, then 16 KB at a time": [
            (at_ms(139) + 5 * i, data) for i, (_, data) in enumerate(held(plain(), 16384))
        ],
    },
    "hidden_tokens": {
        "half is counted with the first event, of one word": counted_in_each(HALF, PLAIN[:71]),
        "half of the reasoning is hidden": [*streamed(PLAIN[70:], range(70, TOKENS)), *closing()],
        "three quarters are hidden, one letter a token": [
            *streamed(ONES[105:], range(105, TOKENS)),
            *closing(),
        ],
        "half is hidden, an unspaced script": [*streamed(HAN[70:], range(70, TOKENS)), *closing()],
        "half is hidden in the middle": [
            *streamed(PLAIN[:70], [*range(35), *range(105, TOKENS)]),
            *closing(),
        ],
    },
}
"""Habits after which the TPOT is not known, by the reason."""


def exchange(reads: Sequence[Read], monkeypatch: pytest.MonkeyPatch) -> Exchange:
    """A request after its last read, on a clock that starts at the due time."""
    now_ns = 0
    clock = SimpleNamespace(monotonic_ns=lambda: now_ns)
    for module in (http_client, http_connection):
        monkeypatch.setattr(module, "time", clock)
    line = Line(TOKENS)
    line.exchange.sent_ns = 0
    head = HEAD % sum(len(data) for _, data in reads)
    for at, data in [(4.0, head), *reads]:
        now_ns = int(at * MS)
        line.connection.data_received(data)
    assert line.ended == [line.exchange]
    return line.exchange


def answers(reads: Sequence[Read], monkeypatch: pytest.MonkeyPatch, count: int = 20) -> pa.Table:
    """Rows of so many answers of one habit, due in one window."""

    async def main() -> Exchange:
        return exchange(reads, monkeypatch)

    made = pa.Table.from_batches(
        [batch([asyncio.run(main())] * count, Clock(0, 0), 0, GapRecord(), defaultdict(BoundedWords))]
    )
    return made.select(records.PROGRESS.names)


def reason(rows: pa.Table) -> str:
    """Why a window of these rows is void; empty for a valid one."""
    window = Window(0, "window", 1.0, 1, 0, 0, 20 * NS, 20 * NS)
    return judge_window(rows, window, Slo(ttft_p90_ms=9000.0)).reason


@pytest.mark.battery("stream habits, right")
@pytest.mark.parametrize("habit", FELT)
def test_a_habit_is_measured_as_a_user_feels_it(habit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, (ttft, tpot) = FELT[habit]
    rows = answers(reads, monkeypatch)
    assert reason(rows) == ""
    assert quantile(metrics.ttft(rows), 0.9) == pytest.approx(ttft)
    assert quantile(metrics.tpot(rows), 0.9) == pytest.approx(tpot, rel=0.02)


@pytest.mark.battery("stream habits, void")
@pytest.mark.parametrize(("why", "habit"), [(why, habit) for why in VOID for habit in VOID[why]])
def test_a_habit_that_hides_the_pace_makes_its_window_void(
    why: str, habit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = answers(VOID[why][habit], monkeypatch)
    assert reason(rows) == why
    assert quantile(metrics.tpot(rows), 0.9) is None


ANY_SIZE = range(300, 20_000, 700)


@pytest.mark.parametrize("read", [held, flushed], ids=["by size", "by time"])
def test_no_gateway_makes_a_token_faster_than_it_was(
    read: Callable[[Sequence[Read], float], list[Read]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in ANY_SIZE:
        rows = answers(read(plain(), size if read is held else size / 10), monkeypatch, count=1)
        tpot = quantile(metrics.tpot(rows), 0.9)
        assert tpot is None or tpot == pytest.approx(STEP_MS, rel=0.1), size
