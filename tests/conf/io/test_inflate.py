"""conf.io.inflate: compressed bodies, unpacked as they come, within a bound."""

import gzip
import zlib

import pytest

from conf.io.inflate import Inflater, unpacked


@pytest.mark.parametrize(("encoding", "wbits"), [("gzip", 31), ("X-GZIP", 31), ("deflate", 15)])
def test_each_piece_gives_what_it_holds(encoding: str, wbits: int) -> None:
    pack, inflater = zlib.compressobj(wbits=wbits), Inflater(encoding, 100)
    for text in (b"one", b"two"):
        assert inflater.feed(pack.compress(text) + pack.flush(zlib.Z_SYNC_FLUSH)) == text
    assert inflater.feed(pack.flush()) == b""


@pytest.mark.parametrize(
    ("body", "encoding", "why"),
    [
        (b"", "br", "Content-Encoding: br cannot be read, only gzip and deflate"),
        (b"", "gzip, br", "cannot be read"),
        (b"plain", "gzip", "damaged"),
        (gzip.compress(b"a" * 101), "gzip", "longer than 100 bytes"),
    ],
)
def test_what_cannot_be_unpacked_is_refused(body: bytes, encoding: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpacked(body, encoding, 100)


def test_a_plain_body_stays_as_it_is() -> None:
    assert unpacked(b"plain", "Identity", 3) == b"plain"
