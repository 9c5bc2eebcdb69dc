"""The key and the trusted certificates of a client's connections; sends nothing."""

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from conf.io.secret import Secret

MOST_CA_BYTES = 2**20
"""Longest file of certificates that is read; the system's own list has a quarter of it (our choice)."""
UNTRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes (X509_V_ERR_...) for a certificate that no trusted CA has signed."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Access:
    """The key that servers get, and the CA certificates that they are trusted by.

    `ca` is the PEM text of the only trusted certificates. If it is empty, the system's are trusted, or those
    of the file that SSL_CERT_FILE names.
    """

    key: Secret | None = None
    ca: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry the key."""
        return {"Authorization": self.key.authorization} if self.key else {}

    def redact(self, text: str) -> str:
        """A server's text without the key. Redact before cutting a text, or a part of the key would stay."""
        return self.key.redact(text) if self.key else text

    def tls(self) -> ssl.SSLContext:
        """The context of connections over TLS; to load certificates takes tens of milliseconds."""
        return ssl.create_default_context(cadata=self.ca or None)


DEFAULT_ACCESS = Access()


def certificates(path: Path) -> str:
    """The certificates of a PEM file without the rest of it, which may be a private key.

    Raises ValueError, or OSError for a file that cannot be read.
    """
    with path.open("rb") as file:
        text = file.read(MOST_CA_BYTES + 1)
    if len(text) > MOST_CA_BYTES:
        raise ValueError(f"longer than {MOST_CA_BYTES} bytes")
    pem = "\n".join(_CERTIFICATE.findall(text.decode("ascii", errors="ignore")))
    if not pem:
        raise ValueError("no certificate in PEM form (-----BEGIN CERTIFICATE-----)")
    try:
        Access(ca=pem).tls()
    except (ssl.SSLError, ValueError) as error:
        raise ValueError("a certificate in it is damaged") from error
    return pem


def failure_text(error: Exception) -> str:
    """The message of a failed connection, with the remedy if no trusted CA has signed the certificate."""
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in UNTRUSTED:
        return (
            f"the certificate is not trusted ({error.verify_message}); for a private CA give "
            "target.ca_file=PATH, or SSL_CERT_FILE=PATH in the environment"
        )
    return str(error)
