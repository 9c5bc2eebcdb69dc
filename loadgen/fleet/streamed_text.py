"""Counts the tokens of a streamed answer by its text: those of the first read, and those of the whole.

Most servers send one token in an event. Others send several (speculative decoding, a stream interval, a
parser or gateway that collects), split a token over events, or count tokens that they never stream (hidden
reasoning). Only the server's final count and the text tell these apart.
"""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

SPACED = 0.1
"""Least share of events that begin a word, for text whose words are separated by spaces (our choice)."""
FEW_JOINED = 0.05
"""Where several tokens an event stand in such text, more than this share of those beyond the first begin a
word inside of an event; of English some 0.7 (our choice)."""
LEAST_MISSING = 8
"""Fewest tokens beyond one an event for which no joined word is no chance (in English one in a thousand)."""
KEPT_BYTES = 2**18
"""Most text that is kept of an answer in flight: some 50,000 tokens (our choice)."""
END = b'"'
"""Ends the text of each event in what is kept."""
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")


class TokenCounts(NamedTuple):
    """Tokens that had come with the first read, and tokens that the streamed text accounts for."""

    first_read: int
    streamed: int


@dataclass(slots=True)
class StreamedText:
    """Output events so far, with text (`events`) and without (`silent`), and their text, as JSON has it.

    `silent_end` is 1 if an event without text brought the finish reason. `first_events`, `first_silent` and
    `first_bytes` are the counts at the end of the first read with text, `first_counted` is the server's count
    of tokens then, 0 if it sent none. The text is looked at only where events and counted tokens differ in
    number.
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

    def counts(self, tokens: int) -> TokenCounts:
        """Counts of an answer for which the server counts so many tokens; the first is at least 1.

        Both are exact where each event is a token. Elsewhere the first read holds the server's own count at
        that time, or its part of the text. All tokens are streamed, unless the text is too short for them:
        less than a character for each, or words one by one, which several tokens an event would join. Then
        each event is one token.
        """
        if self.silent_tokens(tokens):
            return TokenCounts(max(self.first_events + self.first_silent, 1), tokens)
        missing = tokens - self.events
        if missing == 0 or (missing > 0 and self._hides(missing)):
            return TokenCounts(max(self.first_events, 1), self.events)
        share = self.first_bytes / len(self.kept) if self.kept else 1.0
        return TokenCounts(min(max(self.first_counted or round(share * tokens), 1), tokens), tokens)

    def _hides(self, missing: int) -> bool:
        """True if the text is one token an event, so that so many tokens more cannot be in it.

        No tokenizer in use joins words: an event with a space inside holds several tokens. A character beyond
        the first 65,536 may be four tokens, one for each byte.
        """
        if len(self.kept) >= KEPT_BYTES:
            return False
        texts = [text.decode(errors="replace") for text in _ESCAPE.sub(b"?", bytes(self.kept)).split(END)]
        words = sum(text.startswith(" ") for text in texts)
        joined = sum(text.strip().count(" ") for text in texts)
        one_by_one = missing >= LEAST_MISSING and words >= SPACED * self.events
        most_tokens = sum(1 if char <= "\uffff" else 4 for text in texts for char in text)
        return (one_by_one and joined <= FEW_JOINED * missing) or most_tokens < self.events + missing
