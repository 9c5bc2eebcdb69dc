"""`conf.io.http_get`: certificates of a file, and answers within a bound."""

import gzip
import zlib
from pathlib import Path

import pytest

from conf.io.http_get import MOST_CA_BYTES, AskError, Inflater, ask, certificates, is_packed
from tests.support.servers.certificates import self_signed
from tests.support.servers.threaded_server import serving


def test_only_certificates_are_taken(tmp_path: Path) -> None:
    taken = certificates(self_signed(tmp_path))
    assert taken.startswith("-----BEGIN CERTIFICATE-----\n") and "PRIVATE KEY" not in taken
    (tmp_path / "two.pem").write_text(f"a note\n{taken}\n{taken}")
    assert certificates(tmp_path / "two.pem") == f"{taken}\n{taken}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "no certificate in PEM form"),
        (b"\x30\x82\xff", "no certificate in PEM form"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "is damaged"),
        (b"-----BEGIN CERTIFICATE-----\n\xff\n-----END CERTIFICATE-----", "is damaged"),
        (b"a" * (MOST_CA_BYTES + 1), "longer than"),
    ],
)
def test_a_file_without_certificates_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(ValueError, match=why):
        certificates(tmp_path / "ca.pem")


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
        Inflater(encoding, 100).feed(body)


def test_an_encoding_that_changes_nothing_is_not_packed() -> None:
    assert not is_packed("Identity") and is_packed("gzip")


def test_an_answer_is_not_read_beyond_its_bound() -> None:
    with serving(lambda *_: (200, {}, b"a" * 1000)) as url:
        assert len(ask(url, 10.0, most_bytes=2000).body) == 1000
        with pytest.raises(AskError, match="longer than 900 bytes"):
            ask(url, 10.0, most_bytes=900)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://\ud800/"]
)
def test_an_address_that_is_none_gives_no_answer(url: str) -> None:
    with pytest.raises(AskError):
        ask(url, 10.0)
