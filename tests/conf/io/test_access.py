"""conf.io.access: which certificates of a file are taken, and what is refused."""

from pathlib import Path

import pytest

from conf.io.access import MOST_CA_BYTES, certificates
from tests.support.servers.certificates import self_signed


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
