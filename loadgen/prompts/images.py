"""Synthetic images as data URLs, spliced from bytes made before the start.

Pixels of a PNG with a palette are indices into it: all images of a run have the same indices, compressed
once, and each has a palette of its own, so that no two decode to the same pixels. A palette costs one
checksum of some sixty bytes; compressing anew would cost milliseconds.
"""

import struct
import zlib
from base64 import b64encode

import numpy as np

from conf.specs.request_sizes import Images

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
