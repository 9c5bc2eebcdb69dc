"""Image parts of chat messages: identity and tokens of an image from its header; decodes no pixel.

The rest of an image is checked to be base64, not to be a PNG. Also the images that a replica has seen, as
in vLLM's cache of processed images.
"""

import struct
from binascii import Error, a2b_base64
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from conf.specs.request_sizes import tokens_of
from serve_apps.simulated.openai_answers import ApiError, Image, ServedModel, invalid

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
        self._names: OrderedDict[int, None] = OrderedDict()

    def new_tokens(self, images: Iterable[Image]) -> int:
        """Tokens of the images that have not been seen lately; afterwards all have."""
        tokens = 0
        for image in images:
            tokens += 0 if image.name in self._names else image.tokens
            self._names[image.name] = None
            self._names.move_to_end(image.name)
        while len(self._names) > self._most:
            self._names.popitem(last=False)
        return tokens
