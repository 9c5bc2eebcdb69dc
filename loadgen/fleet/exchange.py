"""One request and its answer so far, and what the text of the answer says of its tokens.

Most servers send one token in an event. Others send several (speculative decoding, a stream interval, a
parser or gateway that collects), split a token over events, or count tokens that they never stream (hidden
reasoning). Only the server's final count and the text tell these apart.
"""

import re
from array import array
from dataclasses import dataclass, field
from functools import partial

from conf.io.http_get import SUCCESSES
from conf.io.one_line import one_line
from loadgen.traffic.schedule import Planned

WORD_CHARS = 200
"""Longest text of a server that is kept (our choice)."""
COUNT_LIMIT = 2**31
"""Counts are 32 bits with a sign; a server that reports more is not believed."""
NO_USAGE = (
    "nothing counts its tokens; the server must honour stream_options.include_usage or send usage unasked"
)
"""What is wrong with an answer without usage: events may hold several tokens, or none."""
TOO_FEW = (
    "the server must honour ignore_eos or min_tokens, and have room for prompt and answer in its context"
)
TOO_MANY = (
    "the server must honour max_tokens; for a chat it may be target.max_tokens_field=max_completion_tokens"
)
"""Remedies for an answer of another length than the requested one."""
SPACED = 0.1
"""Least share of events that begin a word, for text whose words are separated by spaces (our choice)."""
FEW_JOINED = 0.05
"""Share of the tokens beyond the first of an event that begin a word in it, at least; of English 0.7."""
LEAST_MISSING = 8
"""Fewest tokens beyond one an event for which no joined word is no chance (in English one in a thousand)."""
KEPT_BYTES = 2**18
"""Most text that is kept of an answer in flight: some 50,000 tokens (our choice)."""
END = b'"'
"""Ends the text of each event in what is kept."""
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")


@dataclass(slots=True)
class StreamedText:
    """Output events so far, with text (`events`) and without (`silent`), and their text, as JSON has it.

    `silent_end` is 1 if an event without text brought the finish reason. The `first_` fields are the counts
    at the end of the first read with text, `first_counted` is the server's then, 0 if it sent none.
    """

    events: int = 0
    silent: int = 0
    silent_end: int = 0
    kept: bytearray = field(default_factory=bytearray)
    first_events: int = 0
    first_silent: int = 0
    first_bytes: int = 0
    first_counted: int = 0

    def add(self, text: bytes) -> None:
        """Count an event with a text that `END` closes."""
        self.events += 1
        if len(self.kept) < KEPT_BYTES:
            self.kept += text[:KEPT_BYTES]

    def end_first_read(self, counted: int) -> None:
        """Keep the counts of the first read with text, and the server's own count in it."""
        self.first_events, self.first_silent, self.first_bytes = self.events, self.silent, len(self.kept)
        self.first_counted = counted

    def silent_tokens(self, tokens: int) -> int:
        """Events without text that are tokens which print nothing: those that the server's count includes."""
        missing = tokens - self.events
        return missing if missing in (self.silent, self.silent + self.silent_end) else 0

    def counts(self, tokens: int) -> tuple[int, int]:
        """Tokens that had come with the first read, at least 1, and tokens that the text accounts for.

        The server counts `tokens`. Both are exact where each event is a token. Elsewhere the first read holds
        the server's own count at that time, or its part of the text. All tokens are streamed, unless the text
        is too short for them: then each event is one token.
        """
        if self.silent_tokens(tokens):
            return max(self.first_events + self.first_silent, 1), tokens
        missing = tokens - self.events
        if missing == 0 or (missing > 0 and self._hides(missing)):
            return max(self.first_events, 1), self.events
        share = self.first_bytes / len(self.kept) if self.kept else 1.0
        return min(max(self.first_counted or round(share * tokens), 1), tokens), tokens

    def _hides(self, missing: int) -> bool:
        """True if the text is one token an event, so that so many tokens more cannot be in it.

        No tokenizer in use joins words. A character beyond the first 65,536 may be four tokens, one for each
        byte.
        """
        if len(self.kept) >= KEPT_BYTES:
            return False
        texts = [text.decode(errors="replace") for text in _ESCAPE.sub(b"?", bytes(self.kept)).split(END)]
        words = sum(text.startswith(" ") for text in texts)
        joined = sum(text.strip().count(" ") for text in texts)
        one_by_one = missing >= LEAST_MISSING and words >= SPACED * self.events
        most_tokens = sum(1 if char <= "\uffff" else 4 for text in texts for char in text)
        return (one_by_one and joined <= FEW_JOINED * missing) or most_tokens < self.events + missing


@dataclass(slots=True)
class Exchange:
    """A planned request and its answer; times are monotonic ns, None where the event never came.

    `sent_ns` is when the client wrote the request to a kept connection, or began to open a new one: the time
    that server and network take to accept is not its lateness. `gaps_us` are between consecutive socket reads
    that carried output. The server's clock runs `time_scale` times as fast as the real one; `engine` are the
    counts that a simulated engine reports of itself, `queue_ms` is the server's own figure. Of reads with
    events that have no text `silent_reads` is the number, `silent_end_ns` the one with the finish reason.
    """

    plan: Planned
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
    time_scale: float = 1.0
    queue_ms: float | None = None
    text: StreamedText = field(default_factory=StreamedText)
    silent_reads: int = 0
    first_silent_ns: int | None = None
    last_silent_ns: int | None = None
    silent_end_ns: int | None = None
    done: bool = False
    gaps_us: "array[int]" = field(default_factory=partial(array, "i"))

    @property
    def events(self) -> int:
        """Events that carried output: text, or, where the server's count includes them, tokens without."""
        return self.text.events + self.text.silent_tokens(self.tokens)

    @property
    def is_success(self) -> bool:
        """True once the head of the answer has come, with a status of success."""
        return self.http_status in SUCCESSES

    @property
    def tokens(self) -> int:
        """Output tokens: the server's count when it came, else the events with text so far."""
        return (self.usage or {}).get("completion_tokens", self.text.events)

    @property
    def reads(self) -> int:
        """Socket reads that carried output; fewer than `events` where several came at once."""
        silent = self.silent_reads if self.text.silent_tokens(self.tokens) else 0
        return len(self.gaps_us) + (self.text.events > 0) + silent

    def output_at(self, now_ns: int) -> None:
        """Take note of a socket read that carried output."""
        if self.last_token_ns is None:
            self.first_token_ns = now_ns
            self.text.end_first_read((self.usage or {}).get("completion_tokens", 0))
        else:
            gap_us = (now_ns - self.last_token_ns) // 1000
            self.gaps_us.append(gap_us if gap_us < COUNT_LIMIT else COUNT_LIMIT - 1)
        self.last_token_ns = now_ns

    def silent_at(self, now_ns: int) -> None:
        """Take note of a socket read with events that all had no text: tokens that print nothing, or none."""
        self.silent_reads += 1
        if self.text.silent_end and self.silent_end_ns is None:
            self.silent_end_ns = now_ns
            return
        self.first_silent_ns = self.first_silent_ns or now_ns
        self.last_silent_ns = now_ns

    def fail(self, status: str, kind: str, error: str | None = None) -> None:
        """Record the first reason of a failure; a later one never replaces it."""
        if self.status is None:
            self.status, self.error_kind = status, kind
            self.error = one_line(error, WORD_CHARS) if error else self.error

    def judge(self) -> None:
        """Name the outcome of a complete answer: ok only with all that a whole one has."""
        if silent := self.text.silent_tokens(self.tokens):
            # The first text is still the first that a user sees, but the last token may print nothing.
            end_ns = self.silent_end_ns if silent > self.text.silent else None
            ends_ns = [at_ns for at_ns in (self.last_token_ns, self.last_silent_ns, end_ns) if at_ns]
            self.first_token_ns = self.first_token_ns or self.first_silent_ns or end_ns
            self.last_token_ns = max(ends_ns, default=None)
        if not self.is_success:
            self.fail("http_error", str(self.http_status))
        elif not self.events:
            self.fail("truncated", "no_token")
        elif not self.done:
            self.fail("truncated", "no_done")
        elif self.usage is None:
            self.fail("truncated", "no_usage", NO_USAGE)
        elif self.finish_reason is None:
            self.fail("truncated", "no_finish_reason")
        elif self.tokens != self.plan.output_tokens:
            remedy = TOO_FEW if self.tokens < self.plan.output_tokens else TOO_MANY
            counts = f"{self.tokens} tokens instead of {self.plan.output_tokens}"
            self.fail("truncated", "token_count", f"{counts}; {remedy}")
        elif self.status is None:
            self.status = "ok"
