"""Counts the tokens of a streamed answer by its text: those of the first read, and those of the whole.

Most servers send one token in an event. Others send several (speculative decoding, a stream interval, a
parser or gateway that collects), split a token over events, or count tokens that they never stream (hidden
reasoning). Only the server's final count and the text tell these apart.
"""

import re
from dataclasses import dataclass, field

SPACED = 0.1
"""Least share of events that begin a word, for text whose words are separated by spaces (our choice)."""
FEW_JOINED = 0.05
"""Where several tokens an event stand in such text, more than this share of those beyond the first begin a
word inside of an event; of English some 0.7 (our choice)."""
KEPT_BYTES = 2**18
"""Most text that is kept of an answer in flight: some 50,000 tokens (our choice)."""
END = b'"'
"""Ends the text of each event in what is kept."""
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|.)")


@dataclass(slots=True)
class StreamedText:
    """Output events so far, with text and without (`silent`), and their text, as JSON has it.

    `first_events`, `first_silent` and `first_bytes` are the counts at the end of the first read with text,
    `first_counted` is the server's count of tokens then, 0 if it sent none. The text is looked at only where
    events and counted tokens differ in number.
    """

    events: int = 0
    silent: int = 0
    kept: bytearray = field(default_factory=bytearray)
    first_events: int = 0
    first_silent: int = 0
    first_bytes: int = 0
    first_counted: int = 0

    def add(self, text: bytes) -> None:
        """Count an event with a text that `END` closes."""
        self.events += 1
        if len(self.kept) < KEPT_BYTES:
            self.kept += text

    def end_first_read(self, counted: int) -> None:
        """Keep the counts of the first read with text, and the server's own count in it."""
        self.first_events, self.first_silent, self.first_bytes = self.events, self.silent, len(self.kept)
        self.first_counted = counted

    def silent_are_tokens(self, tokens: int) -> bool:
        """True if the server's count includes the events without text: tokens that print nothing."""
        return self.silent > 0 and self.events + self.silent == tokens

    def streamed_tokens(self, tokens: int) -> int:
        """Tokens of the answer that reached the client, of those that the server counts; an estimate.

        All of them, unless the text is too short for that: less than a character for each, or words one by
        one, which are not joined as several tokens in an event would be. Then each event is one token.
        """
        shown = self.events + self.silent if self.silent_are_tokens(tokens) else self.events
        return shown if shown < tokens and self._hides(tokens - shown) else tokens

    def first_read_tokens(self, tokens: int) -> int:
        """Tokens that had come with the first read, at least 1; exact where each event is a token.

        Elsewhere it is the server's count in that read, or the read's part of the text.
        """
        if self.silent_are_tokens(tokens):
            return max(self.first_events + self.first_silent, 1)
        streamed = self.streamed_tokens(tokens)
        if streamed == self.events:
            return max(self.first_events, 1)
        share = self.first_bytes / len(self.kept) if self.kept else 1.0
        return min(max(self.first_counted or round(share * streamed), 1), streamed)

    def _hides(self, missing: int) -> bool:
        """True if the text is one token an event, so that so many tokens more cannot be in it.

        No tokenizer in use joins words: an event with a space inside holds several tokens.
        """
        if len(self.kept) >= KEPT_BYTES:
            return False
        texts = [text.decode(errors="replace") for text in _ESCAPE.sub(b"?", bytes(self.kept)).split(END)]
        words = sum(text.startswith(" ") for text in texts)
        joined = sum(text.strip().count(" ") for text in texts)
        one_by_one = words >= SPACED * self.events and joined <= FEW_JOINED * missing
        return one_by_one or sum(map(len, texts)) < self.events + missing
