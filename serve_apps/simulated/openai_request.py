"""Bodies of vLLM's OpenAI-compatible API become requests, or an `ApiError`. There is no tokenizer: one word
between white space is one token, and each chat message costs one more for its role."""

import json
import struct
from binascii import Error, a2b_base64
from collections.abc import Hashable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import Any

from conf.specs.request_sizes import tokens_of
from serve_apps.simulated.openai_answers import ApiError, ApiRequest, Image, Reveal, ServedModel, invalid

DEFAULT_MAX_TOKENS = 16
"""vLLM's default of /v1/completions; a chat without `max_tokens` may fill the model's context."""

MOST_BODY_BYTES = 70_000_000
"""OpenAI takes 50 MB of images in a request (its guide on images and vision), in base64 67 MB; 262,144 token
ids, the longest context of our models, are 2 MB."""

NOT_SIMULATED = ("echo", "top_logprobs", "prompt_logprobs", "use_beam_search")
"""Parameters that would change the shape of an answer in a way the simulated engine cannot follow."""
NOT_IN_CHATS = ("logprobs", "return_token_ids")

MAX_LOGPROBS = 20
"""vLLM's default of --max-logprobs (0.32.0)."""
MOST_SALT_CHARS, NOT_IN_SALTS = 128, "@/\\\0"
"""Longest `cache_salt` (0.32.0)."""


def parse_completion(body: bytes, served: ServedModel) -> ApiRequest:
    """The body of /v1/completions: a prompt as text or as token ids. Raises ApiError."""
    fields = _fields(body, served)
    tokens = _prompt_tokens(fields.get("prompt"), served)
    most_tokens = _integer(fields, "max_tokens")
    return _request(fields, served, False, tokens, DEFAULT_MAX_TOKENS if most_tokens is None else most_tokens)


def parse_chat(body: bytes, served: ServedModel) -> ApiRequest:
    """The body of /v1/chat/completions. Raises ApiError."""
    fields = _fields(body, served)
    parts = list(_parts(fields.get("messages"), served))
    most_tokens = _integer(fields, "max_completion_tokens")
    if most_tokens is None:
        most_tokens = _integer(fields, "max_tokens")
    images = tuple(part for part in parts if isinstance(part, Image))
    # A header of 24 bytes may claim 10**16 tokens: none is made before they are known to fit.
    claimed = len(parts) - len(images) + sum(image.tokens for image in images)
    _require_room(claimed, max(1, most_tokens or 1), served.max_model_len)
    tokens: list[Hashable] = []
    for part in parts:
        tokens += [(part.name, i) for i in range(part.tokens)] if isinstance(part, Image) else [part]
    return _request(fields, served, True, tokens, most_tokens, images)


def block_hashes(tokens: Sequence[Hashable], block_size: int, salt: str | None = None) -> tuple[int, ...]:
    """A hash for each full block of a prompt, of all tokens up to its end: equal ones begin prompts alike.

    Prompts with another `salt` share no block.
    """
    hashes, chained = [], 0 if salt is None else hash(salt)
    for end in range(block_size, len(tokens) + 1, block_size):
        chained = hash((chained, *tokens[end - block_size : end]))
        hashes.append(chained)
    return tuple(hashes)


def _fields(body: bytes, served: ServedModel) -> dict[str, Any]:
    """The body's fields, for the model that is served."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON decode error: {error}") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object")
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise invalid("model must be a string", "model")
    if name and name != served.name:
        message = f"The model `{name}` does not exist."
        raise ApiError(message, HTTPStatus.NOT_FOUND, "NotFoundError", "model")
    return fields


def _prompt_tokens(prompt: Any, served: ServedModel) -> Sequence[Hashable]:
    """Tokens of the one prompt; vLLM also takes a list of one prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None or prompt == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return prompt.split() or [prompt]
    if not isinstance(prompt, list):
        raise invalid("prompt must be a string or a list of token ids", "prompt")
    if not prompt:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    kinds = set(map(type, prompt))
    if kinds <= {str, list}:
        raise ApiError("the simulated engine takes one prompt per request", param="prompt")
    if kinds != {int}:
        raise invalid("prompt must be a string or a list of token ids", "prompt")
    if min(prompt) < 0:
        raise invalid("token ids must not be negative", "prompt")
    if max(prompt) >= served.vocab:
        raise ApiError(f"Token id {max(prompt)} is out of vocabulary", param="prompt")
    return prompt


def _parts(messages: Any, served: ServedModel) -> Iterator[str | Image]:
    """Words and images of all messages, in their order."""
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a non-empty list", "messages")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise invalid("each message must be an object with a role", "messages")
        yield f"<{message['role']}> "  # the one token of the template around a message, which no word equals
        content = message.get("content")
        if isinstance(content, str):
            yield from content.split()
        elif isinstance(content, list) and all(isinstance(part, dict) for part in content):
            for part in content:
                is_image = part.get("type") == "image_url"
                yield from (read(part, served),) if is_image else str(part.get("text", "")).split()
        elif content is not None:
            raise invalid("the content of a message must be a string or a list of parts", "messages")


def _request(
    fields: dict[str, Any],
    served: ServedModel,
    chat: bool,
    tokens: Sequence[Hashable],
    most_tokens: int | None,
    images: tuple[Image, ...] = (),
) -> ApiRequest:
    input_tokens = len(tokens)
    if (choices := _integer(fields, "n")) not in (None, 1):
        raise ApiError(f"n={choices} is not available from the simulated engine", param="n")
    for name in (*NOT_SIMULATED, *NOT_IN_CHATS) if chat else NOT_SIMULATED:
        if fields.get(name):
            raise ApiError(f"{name} is not available from the simulated engine", param=name)
    if most_tokens is not None and most_tokens < 1:
        message = (
            f"max_tokens must be at least 1, got {most_tokens}. (parameter=max_tokens, value={most_tokens})"
        )
        raise ApiError(message, param="max_tokens")
    _require_room(input_tokens, most_tokens or 1, served.max_model_len)
    output_tokens = served.max_model_len - input_tokens if most_tokens is None else most_tokens
    least = _integer(fields, "min_tokens") or 0
    if not 0 <= least <= output_tokens:
        bound = (
            "greater than or equal to 0" if least < 0 else f"less than or equal to max_tokens={output_tokens}"
        )
        raise ApiError(f"min_tokens must be {bound}, got {least}.", param="min_tokens")
    stream = _flag(fields, "stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    if options and not stream:
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    usage = bool(options) and _flag(options, "include_usage", default=True)
    in_each = usage and _flag(options, "continuous_usage_stats")
    salt = _salt(fields)
    hashes = block_hashes(tokens, served.block_size, salt) if served.block_size else ()
    reveal = None if chat else _reveal(fields, tokens, served)
    return ApiRequest(chat, input_tokens, output_tokens, stream, usage, in_each, hashes, images, reveal)


def _reveal(fields: dict[str, Any], tokens: Sequence[Hashable], served: ServedModel) -> Reveal | None:
    """The part of its tokens that the answer shows, or None; refuses in the words of vLLM 0.32.0."""
    if fields.get("logprobs") is None and fields.get("return_token_ids") is None:
        return None
    logprobs, token_ids = _integer(fields, "logprobs"), _flag(fields, "return_token_ids")
    if logprobs is not None:
        if logprobs < -1:
            message = f"`logprobs` must be a positive value or -1. (parameter=logprobs, value={logprobs})"
            raise ApiError(message, param="logprobs")
        count = served.vocab if logprobs == -1 else logprobs  # -1 asks for the whole vocabulary
        if count > MAX_LOGPROBS:
            raise ApiError(
                f"Requested sample logprobs of {count}, which is greater than max allowed: {MAX_LOGPROBS} "
                f"(parameter=logprobs, value={count})",
                param="logprobs",
            )
        if not _flag(fields, "return_tokens_as_token_ids"):
            message = "logprobs without return_tokens_as_token_ids is not available from the simulated engine"
            raise ApiError(message, param="return_tokens_as_token_ids")
    return Reveal(tokens, logprobs, token_ids) if token_ids or logprobs is not None else None


def _require_room(input_tokens: int, output_tokens: int, max_model_len: int) -> None:
    total = input_tokens + output_tokens
    if total > max_model_len:
        raise ApiError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{output_tokens} output tokens and your prompt contains {input_tokens} input tokens, for a "
            f"total of {total} tokens. Please reduce the length of the input prompt or the number of "
            f"requested output tokens. (parameter=input_tokens, value={input_tokens})",
            param="input_tokens",
        )


def _salt(fields: dict[str, Any]) -> str | None:
    """The `cache_salt`; one that is none is refused in the words of vLLM 0.32.0."""
    value = fields.get("cache_salt")
    if value is None:
        return None
    fault = ""
    if not isinstance(value, str) or not value:
        fault = "be a non-empty string if provided."
    elif len(value) > MOST_SALT_CHARS or any(letter in value for letter in NOT_IN_SALTS):
        fault = f"be at most {MOST_SALT_CHARS} characters and must not contain '@', '/', '\\\\', or NUL."
    if fault:
        message = f"Parameter 'cache_salt' must {fault} (parameter=cache_salt)"
        raise ApiError(message, param="cache_salt")
    return str(value)


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or type(value) is int:
        return value
    raise invalid(f"{name} must be an integer", name)


def _flag(fields: dict[str, Any], name: str, default: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise invalid(f"{name} must be true or false", name)


PREFIX = "data:image/png;base64,"
HEADER_BYTES = 24
"""Signature, length and kind of the first chunk, width and height."""
CACHED_IMAGES = 160
"""vLLM's cache of processed images has 4 GiB (mm_processor_cache_gb): so many of 1024 x 1024 pixels, as
patches in 32-bit floats (assumed)."""


def read(part: dict[str, Any], served: ServedModel) -> Image:
    """The image of a part of type image_url. Raises ApiError."""
    held = part.get("image_url")
    url = held.get("url") if isinstance(held, dict) else held
    if not isinstance(url, str):
        raise invalid("image_url must have a url", "messages")
    if not served.image_token_px:
        raise ApiError("At most 0 image(s) may be provided in one prompt.", param="messages")
    if not url.startswith(PREFIX):
        raise ApiError("the simulated engine takes images as data URLs of PNG alone", param="messages")
    width_px, height_px = _size_px(url[len(PREFIX) :])
    return Image(hash(url), tokens_of(width_px, height_px, served.image_token_px))


def _size_px(encoded: str) -> tuple[int, int]:
    try:
        header = a2b_base64(encoded, strict_mode=True)[:HEADER_BYTES]
    except (Error, ValueError) as error:
        raise ApiError(f"Failed to load image: {error}", param="messages") from error
    if len(header) != HEADER_BYTES or header[:8] != b"\x89PNG\r\n\x1a\n" or header[12:16] != b"IHDR":
        raise ApiError("Failed to load image: not a PNG", param="messages")
    width_px, height_px = struct.unpack(">II", header[16:])
    if not width_px or not height_px:
        raise ApiError("Failed to load image: it has no pixels", param="messages")
    return width_px, height_px


class SeenImages:
    """The images seen last, which need not be decoded and encoded again."""

    def __init__(self, most: int = CACHED_IMAGES) -> None:
        self._most = most
        self._names: dict[int, bool] = {}

    def new_tokens(self, images: Iterable[Image]) -> int:
        """Tokens of the images that have not been seen lately; afterwards all have."""
        tokens = 0
        for image in images:
            tokens += 0 if self._names.pop(image.name, False) else image.tokens
            self._names[image.name] = True  # now the one seen last
        while len(self._names) > self._most:
            del self._names[next(iter(self._names))]
        return tokens
