"""Request bodies of exact token length: slices of one long string in which every token's place is known."""

import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence

import numpy as np

from conf.specs.experiment import Workload
from conf.specs.request_sizes import Images
from conf.specs.routing import Endpoints
from loadgen.prompts import text_pool
from loadgen.prompts.text_pool import PromptLevel, TokenBytes, synthetic
from loadgen.traffic.schedule import UNIQUE_TOKENS, Planned, Runs

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS = 16
"""Colours of the palette; the first four spell the image's number. All chunks before the pixels are multiples
of 3 bytes long, so that their base64 can be spliced."""
TILE_PX = 8
"""Side of a square of one colour; an image has some kilobytes, far fewer than a photograph (our choice)."""
BEFORE = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,'
AFTER = b'"}}'


class ImageParts:
    """The image parts of a run's chat messages; images of another `salt` differ from all of these."""

    def __init__(self, images: Images, salt: int) -> None:
        self._images = images
        rng = np.random.default_rng([salt, images.width_px, images.height_px])
        self._salt = int(rng.integers(0, 2**32))
        self._rest = rng.bytes(3 * (COLOURS - 4))
        size = struct.pack(">IIBBBBB", images.width_px, images.height_px, 8, 3, 0, 0, 0)
        self._head = BEFORE + b64encode(SIGNATURE + _chunk(b"IHDR", size))
        tiles = rng.integers(
            0, COLOURS, (-(-images.height_px // TILE_PX), -(-images.width_px // TILE_PX)), np.uint8
        )
        pixels = tiles.repeat(TILE_PX, axis=0).repeat(TILE_PX, axis=1)[: images.height_px, : images.width_px]
        lines = np.zeros(
            (images.height_px, images.width_px + 1), np.uint8
        )  # each begins with its filter: none
        lines[:, 1:] = pixels
        end = _chunk(b"IDAT", zlib.compress(lines.tobytes(), 6)) + _chunk(b"IEND", b"")
        self._end = b64encode(end) + AFTER

    def part(self, seq: int, place: int) -> bytes:
        """The image part at a `place` of the message of request `seq`, as JSON."""
        whose = struct.pack(">QI", (seq << 3 | place) if self._images.unique else place, self._salt)
        return b"".join((self._head, b64encode(_chunk(b"PLTE", whose + self._rest)), self._end))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


SESSIONS_FROM = 2**39
"""Numbers that name sessions start here, beyond those of all requests."""
CHARACTERS_FROM, CUTS_FROM = 2**38, 2**37
"""Numbers that name characters and history cuts start here; their ranges do not overlap."""
STRIDE = 7919
"""Distance between the text positions of consecutive numbers: a prime (our choice)."""
ENVELOPES = {
    "token_ids": (b'{"prompt":[', b"]"),
    "text": (b'{"prompt":"', b'"'),
    "chat": (b'{"messages":[{"role":"user","content":"', b'"}]'),
}
"""JSON before and after the tokens of a prompt."""
IMAGES_HEAD, IMAGES_CLOSE = b'{"messages":[{"role":"user","content":[{"type":"text","text":"', b'"}'
"""JSON before the text of a message with images, and between it and the first image."""


class Prompts:
    """Builds the bodies of one workload.

    Two bodies share exactly the first tokens that they are asked to share; those of one session share the
    share `session_hit` of the shorter one. The rest is unique, so that a prefix cache is hit as intended and
    never by chance. No prompt of another `salt` has the same tokens, not even the shared ones; names of real
    text begin with the same word once in as many as the vocabulary has words.

    `path` is the URL path of the API that takes the bodies, and `target` says which fields its servers take.
    A chat is one user message; a conversation may have a system message before it. The server's chat template
    adds tokens to the requested ones.
    """

    def __init__(
        self, workload: Workload, model: str, vocab: int, salt: int, target: Endpoints | None = None
    ) -> None:
        self._source = (text_pool.source if workload.tokenizer else synthetic)(workload, vocab, salt)
        self._separator, self._text = self._source.separator, PromptLevel(self._source.pool)
        self._head, self._close = ENVELOPES[workload.prompt]
        self.path = "/v1/chat/completions" if workload.prompt == "chat" else "/v1/completions"
        self._begins = _beginnings(self._source.levels, self._head, workload.prompt == "chat")
        self._session_hit = workload.session_hit
        self._image_tokens = workload.images.tokens
        self._album = ImageParts(workload.images, salt) if workload.images.most else None
        self._limits, self._tail = _after_prompt(model, target or Endpoints())

    def body(
        self,
        seq: int,
        input_tokens: int,
        output_tokens: int,
        shared_tokens: int = 0,
        session: int | None = None,
        image_tokens: int = 0,
        begins: Runs = (),
    ) -> bytes:
        """The JSON body of request `seq`: `input_tokens` tokens in, exactly `output_tokens` out.

        The first `shared_tokens` are equal in all bodies. The tokens after them, up to the share
        `session_hit`, are equal in all bodies of `session`. `image_tokens` of the input are images, which
        follow the text. The runs of `begins` are the texts of other requests, from the first token on.
        """
        head, close = self._head, self._close
        if image_tokens:
            assert self._album is not None, "a workload without images has no image tokens"
            input_tokens -= image_tokens
            shared_tokens = min(shared_tokens, input_tokens)
            images = [self._album.part(seq, place) for place in range(image_tokens // self._image_tokens)]
            head, close = IMAGES_HEAD, b",".join([IMAGES_CLOSE, *images]) + b"]}]"
        pieces: list[TokenBytes] = [self._text.pool.slice(0, shared_tokens)] if shared_tokens else []
        begun = shared_tokens
        if session is not None:
            # What a session's prompts share after the common tokens: more than its name has, or nothing.
            most = min(round(self._session_hit * input_tokens), input_tokens - UNIQUE_TOKENS) - shared_tokens
            history = most if most > UNIQUE_TOKENS else 0
            pieces += self._text.pieces(self._source.name(SESSIONS_FROM + session), session * STRIDE, history)
            begun += history
        for owner, end in (*begins, (seq, input_tokens)):
            pieces += self._text.pieces(self._source.name(owner), owner * STRIDE, end - begun)
            begun = end
        return self._joined(head, pieces, close, output_tokens)

    def turn(self, plan: Planned) -> bytes:
        """The JSON body of a turn of a conversation.

        It has the system prompt, a character, a persona and a history from its cut on, each as long as
        planned: equal characters, sessions and cuts share their level.
        """
        character, session = CHARACTERS_FROM + plan.character, SESSIONS_FROM + plan.session
        cut, name, (system, *own) = CUTS_FROM + plan.history_cut, self._source.name, self._source.levels
        history = plan.input_tokens - plan.character_tokens - plan.persona_tokens
        named = (
            (character, character, plan.character_tokens - plan.shared_tokens),
            (session, session, plan.persona_tokens),
            (cut, cut + plan.session, history),
        )
        head, *begins = self._begins
        pieces = system.pieces((), 0, plan.shared_tokens)
        for begin, level, (number, place, tokens) in zip(begins, own, named, strict=True):
            pieces += [begin] if begin else []
            pieces += level.pieces(name(number), place * STRIDE, tokens)
        return self._joined(head, pieces, self._close, plan.output_tokens)

    def _joined(self, head: bytes, pieces: list[TokenBytes], close: bytes, output_tokens: int) -> bytes:
        limits = self._limits % {b"tokens": output_tokens}
        return b"".join((head, self._separator.join(pieces), close, limits, self._tail))


def _after_prompt(model: str, target: Endpoints) -> tuple[bytes, bytes]:
    """JSON that follows the prompt: the limits of the answer, to be filled with `tokens`, and the rest."""
    limits = b',"%s":%%(tokens)d,' % target.max_tokens_field.encode()
    if "min_tokens" not in target.omit:
        limits += b'"min_tokens":%(tokens)d,'
    rest = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    rest |= {"ignore_eos": True, "temperature": 0}
    sent = {name: value for name, value in rest.items() if name not in target.omit}
    return limits, json.dumps(sent, separators=(",", ":")).encode()[1:]


def _beginnings(levels: Sequence[PromptLevel], head: bytes, chat: bool) -> list[bytes]:
    """JSON before each level of a conversation: the head, or a new message if a chat changes role."""
    if not chat or not levels:
        return [head, *(b"" for _ in levels[1:])]
    roles = [level.role.encode() for level in levels]
    joints = [b'"},{"role":"%s","content":"' % role for role in roles[1:]]
    same = [role == before for before, role in zip(roles, roles[1:], strict=False)]
    return [
        head.replace(b"user", roles[0]),
        *(b"" if kept else joint for kept, joint in zip(same, joints, strict=True)),
    ]
