"""Decompresses an HTTP body piece by piece, within a bound."""

import zlib

PLAIN = "identity"
UNPACKED = ("", "none", PLAIN)
"""Encodings that change nothing; `none` keeps proxies from compressing a stream."""
ENCODINGS = ("gzip", "x-gzip", "deflate")
EITHER_FORMAT = zlib.MAX_WBITS + 32
"""zlib reads from the first bytes which of gzip and zlib they are."""


def unpacked(body: bytes, encoding: str, most_bytes: int) -> bytes:
    """A whole body with this Content-Encoding, decompressed. Raises ValueError as `Inflater` does."""
    return Inflater(encoding, most_bytes).feed(body) if is_packed(encoding) else body


def is_packed(encoding: str) -> bool:
    """True for a Content-Encoding under which a body is not its own bytes."""
    return encoding.strip().lower() not in UNPACKED


class Inflater:
    """Decompresses one body with this Content-Encoding; each piece may give at most `most_bytes` bytes.

    Raises ValueError for an encoding other than gzip and deflate.
    """

    __slots__ = ("_decoder", "_most_bytes")

    def __init__(self, encoding: str, most_bytes: int) -> None:
        if encoding.strip().lower() not in ENCODINGS:
            raise ValueError(
                f"Content-Encoding: {encoding} cannot be read, only gzip and deflate; switch compression off"
            )
        self._decoder = zlib.decompressobj(EITHER_FORMAT)
        self._most_bytes = most_bytes

    def feed(self, piece: bytes) -> bytes:
        """The bytes that a further piece gives. Raises ValueError for damage, and for more than the bound."""
        if self._decoder.eof:
            raise ValueError("the compressed answer goes on after its end")
        try:
            plain = self._decoder.decompress(piece, self._most_bytes + 1)
        except zlib.error as error:
            raise ValueError(f"the compressed answer is damaged: {error}") from error
        if len(plain) > self._most_bytes:
            raise ValueError(f"the compressed answer is longer than {self._most_bytes} bytes")
        return plain
