"""Request bodies of exact token length, spliced from bytes made before the start.

Knows JSON bodies of vLLM's completions and chat APIs; knows nothing of sockets. Every token is
written with the same number of characters, so a prompt of n tokens is a slice of one long string:
building a body costs a copy, not a tokeniser.
"""

import json

import numpy as np

from conf.schema import Workload
from loadgen.images import Album

POOL_TOKENS = 65_536
UNIQUE_TOKENS = 8
SESSIONS_FROM = 2**39
"""Sessions are numbered like requests, beyond them all, where they need tokens of their own."""
CHARACTERS_FROM, CUTS_FROM = 2**38, 2**37
"""So are characters and the places where a history is cut; all of them are far fewer than lie between."""
ENVELOPES = {
    "token_ids": (b'{"prompt":[', b"]"),
    "text": (b'{"prompt":"', b'"'),
    "chat": (b'{"messages":[{"role":"user","content":"', b'"}]'),
}
"""What stands before and after the tokens of a prompt."""
IMAGES_HEAD, IMAGES_CLOSE = b'{"messages":[{"role":"user","content":[{"type":"text","text":"', b'"}'
"""The same of a message in parts, up to its first image."""


class Prompts:
    """Bodies for one workload. Two bodies share the first tokens that they are asked to share, and no more.

    Those of one session share more: the share `session_hit` of the shorter one.

    What follows those is unique, so that a prefix cache is hit as intended and never by chance. `salt`
    separates runs: prompts of another salt differ, shared tokens too. Token ids are drawn from the ids of
    the vocabulary with the most digits (10000 to 99999 of 151936), away from special ids. `path` is
    the URL path of the API that takes the bodies. A chat is one user message; what the server's
    template puts around it comes on top of the asked tokens.
    """

    def __init__(self, workload: Workload, model: str, vocab: int, salt: int) -> None:
        digits = len(str(vocab - 1)) - (1 if vocab <= 2 * 10 ** (len(str(vocab - 1)) - 1) else 0)
        self._low, self._high = 10 ** (digits - 1), min(10**digits, vocab)
        rng = np.random.default_rng(salt)
        ids = rng.integers(self._low, self._high, size=2 * POOL_TOKENS)
        self._separator = b"," if workload.prompt == "token_ids" else b" "
        self._head, self._close = ENVELOPES[workload.prompt]
        self.path = "/v1/chat/completions" if workload.prompt == "chat" else "/v1/completions"
        self._width = digits + 1
        self._pool = self._separator.join(str(i).encode() for i in ids.tolist()) + self._separator
        self._salt = int(rng.integers(0, 2**31))
        self._session_hit = workload.session_hit
        self._image_tokens = workload.images.tokens
        self._album = Album(workload.images, salt) if workload.images.most else None
        rest = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
        rest |= {"ignore_eos": True, "temperature": 0}
        self._tail = json.dumps(rest, separators=(",", ":")).encode()[1:]

    def body(
        self,
        seq: int,
        input_tokens: int,
        output_tokens: int,
        shared_tokens: int = 0,
        session: int | None = None,
        image_tokens: int = 0,
    ) -> bytes:
        """The JSON body of request `seq`: `input_tokens` tokens in, exactly `output_tokens` out.

        The first `shared_tokens` are the same in every body, however many of them it has; what follows them
        up to the share `session_hit` is the same in every body of `session`. `image_tokens` of the input are
        images, which come after the text.
        """
        head, close = self._head, self._close
        if image_tokens:
            input_tokens -= image_tokens
            shared_tokens = min(shared_tokens, input_tokens)
            head, close = self._with_images(seq, image_tokens)
        pieces: list[bytes | memoryview] = [self._slice(0, shared_tokens)] if shared_tokens else []
        begun = shared_tokens
        if session is not None:
            history = self._history(session, input_tokens, shared_tokens)
            begun += sum(tokens for tokens, _ in history)
            pieces += [piece for _, piece in history]
        unique = self._unique(seq)[: input_tokens - begun]
        rest = self._slice(seq * 7919, input_tokens - begun - len(unique))
        prompt = self._separator.join([*pieces, *unique, rest] if rest else [*pieces, *unique])
        limits = b',"max_tokens":%d,"min_tokens":%d,' % (output_tokens, output_tokens)
        return b"".join((head, prompt, close, limits, self._tail))

    def turn(
        self,
        input_tokens: int,
        output_tokens: int,
        levels: tuple[int, int, int],
        names: tuple[int, int, int],
    ) -> bytes:
        """The JSON body of a turn of a conversation.

        `levels` are the tokens of the system prompt, of it and the character, and of the persona; the history
        is the rest. `names` are character, session and the cut of the history: prompts that have the first
        names and levels in common are the same up to there and no further, and a history only grows at its
        end.
        """
        shared, of_character, persona = levels
        character, session, cut = names
        pieces: list[bytes | memoryview] = [self._slice(0, shared)] if shared else []
        pieces += self._named(CHARACTERS_FROM + character, of_character - shared)
        pieces += self._named(SESSIONS_FROM + session, persona)
        pieces += self._named(CUTS_FROM + cut, input_tokens - of_character - persona, session)
        limits = b',"max_tokens":%d,"min_tokens":%d,' % (output_tokens, output_tokens)
        prompt = self._separator.join(pieces)
        return b"".join((self._head, prompt, self._close, limits, self._tail))

    def _named(self, number: int, tokens: int, place: int = 0) -> list[bytes | memoryview]:
        """So many tokens that begin like nobody else's: those that spell the number, and a slice."""
        name = self._unique(number)[:tokens]
        rest = self._slice((number + place) * 7919, tokens - len(name))
        return [*name, rest] if rest else [*name]

    def _with_images(self, seq: int, image_tokens: int) -> tuple[bytes, bytes]:
        """What stands before and after the text of a message with images."""
        assert self._album is not None, "a workload without images has no image tokens"
        images = [self._album.part(seq, place) for place in range(image_tokens // self._image_tokens)]
        return IMAGES_HEAD, b",".join([IMAGES_CLOSE, *images]) + b"]}]"

    def _history(
        self, session: int, input_tokens: int, shared_tokens: int
    ) -> list[tuple[int, bytes | memoryview]]:
        """What the prompts of a session begin with after that of all: tokens that name it, and a slice.

        Nothing where there is no room for its name, or beside it none for what makes the prompt unique.
        """
        most = min(round(self._session_hit * input_tokens), input_tokens - UNIQUE_TOKENS)
        rest = most - shared_tokens - UNIQUE_TOKENS
        if rest < 1:
            return []
        name = self._separator.join(self._unique(SESSIONS_FROM + session))
        return [(UNIQUE_TOKENS, name), (rest, self._slice(session * 7919, rest))]

    def _unique(self, seq: int) -> list[bytes]:
        """`UNIQUE_TOKENS` tokens that spell salt and seq in the base of the id range."""
        base = self._high - self._low
        number, tokens = (self._salt << 40) + seq, []
        for _ in range(UNIQUE_TOKENS):
            number, digit = divmod(number, base)
            tokens.append(b"%d" % (self._low + digit))
        return tokens

    def _slice(self, first: int, tokens: int) -> memoryview:
        """A view, because at 25 kB each copy costs as much as reading several tokens."""
        pool = self._pool if tokens <= POOL_TOKENS else self._pool * -(-tokens // POOL_TOKENS)
        at = first % POOL_TOKENS * self._width
        return memoryview(pool)[at : at + max(0, tokens * self._width - 1)]
