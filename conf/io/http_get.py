"""One HTTP request and its whole answer, within bounds of time and size.

It goes straight to its server, as the load does: through no proxy, and a redirect is refused, because it
would give the key to another server. The standard library's client reads the answer (at most 100 headers of
64 KiB); time and bytes are counted at the socket below it, so that no answer can trickle past the bounds.
"""

import io
import re
import socket
import ssl
import time
import zlib
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from conf.io.one_line import one_line
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


PLAIN = "identity"
UNPACKED = ("", "none", PLAIN)
"""Encodings that change nothing; `none` keeps proxies from compressing a stream."""
ENCODINGS = ("gzip", "x-gzip", "deflate")
EITHER_FORMAT = zlib.MAX_WBITS + 32
"""zlib reads from the first bytes which of gzip and zlib they are."""


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


if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

MOST_BYTES = 4 * 2**20
"""Most bytes of an answer with its headers; a gateway's list of some hundred models takes an eighth of it
(our choice)."""
PIECE_BYTES = 2**16
WORD_CHARS = 200
SUCCESSES, REDIRECTS = range(200, 300), range(300, 400)
NOWHERE = "it names none"


class AskError(OSError):
    """No complete, trustworthy answer; the message is one line with the reason, without the key."""


class RedirectError(AskError):
    """The server redirects; its `status` says how."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A complete answer without the key; `names` are its headers, with names in lower case.

    `first_s` are the seconds from the start of the connection to the first byte of the body.
    """

    status: int
    names: Mapping[str, str]
    body: bytes
    first_s: float

    @property
    def is_success(self) -> bool:
        return self.status in SUCCESSES

    @property
    def said(self) -> str:
        """The status and the beginning of the body, in one line."""
        return f"HTTP {self.status} {one_line(self.body.decode(errors='replace'), WORD_CHARS)}".rstrip()


def ask(
    url: str,
    within_s: float,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    access: Access = DEFAULT_ACCESS,
    most_bytes: int = MOST_BYTES,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """The answer to a GET, or with a `body` to a POST, with any status but a redirect's.

    Everything from connecting to the last byte takes at most `within_s`; only the look-up of a name has the
    resolver's own limit. Whoever asks often makes the context `tls` of `access` once. Raises AskError.
    """
    try:
        parts = urlsplit(url)
        sent = {"Host": parts.netloc.rpartition("@")[2], "Connection": "close", **(headers or {})}
        sent |= access.headers
        tls = (tls or access.tls()) if parts.scheme == "https" else None
        began_s = time.monotonic()
        with closing(_connected(parts, tls, began_s + within_s, most_bytes)) as line:
            return _cleared(_exchanged(line, parts, body, sent, began_s), access, most_bytes)
    except TimeoutError as error:
        raise AskError(f"no whole answer within {within_s:g} s") from error
    except RedirectError as error:
        raise RedirectError(one_line(access.redact(str(error))), error.status) from error
    except (OSError, HTTPException, ValueError) as error:
        words = failure_text(error) or type(error).__name__
        raise AskError(one_line(access.redact(words))) from error


def _exchanged(
    line: "_Line", parts: SplitResult, body: bytes | None, headers: Mapping[str, str], began_s: float
) -> HttpAnswer:
    """Send the request and read the answer."""
    connection = HTTPConnection(parts.hostname or "")
    connection.sock = line  # it has all methods that the client uses
    path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
    method = "GET" if body is None else "POST"
    connection.request(method, path, body, dict(headers))
    with closing(HTTPResponse(line, method=method)) as response:  # type: ignore[arg-type]
        response.begin()
        if response.status in REDIRECTS:
            raise RedirectError(redirect_text(response.headers.get("Location", NOWHERE)), response.status)
        first = response.read(1)
        first_s = time.monotonic() - began_s
        pieces = [first]
        while piece := response.read(PIECE_BYTES):
            pieces.append(piece)
        if response.length:
            raise AskError(f"the answer ended {response.length} bytes before its end")
        names = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, names, b"".join(pieces), first_s)


def redirect_text(location: str) -> str:
    """The reason why a redirect is a failure, with the remedy."""
    if location == NOWHERE:
        return "it redirects without saying where"
    return f"it redirects, which is not followed; give the address that it leads to: {location}"


def _cleared(answer: HttpAnswer, access: Access, most_bytes: int) -> HttpAnswer:
    """The answer with its body decompressed and without the key. Raises ValueError."""
    body, encoding = answer.body, answer.names.get("content-encoding", PLAIN)
    if is_packed(encoding):
        body = Inflater(encoding, most_bytes).feed(body)
    if access.key is None:
        return replace(answer, body=body)
    cleared = access.redact(body.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    names = {name: access.redact(value) for name, value in answer.names.items()}
    return replace(answer, names=names, body=cleared)


def _connected(parts: SplitResult, tls: ssl.SSLContext | None, deadline_s: float, most_bytes: int) -> "_Line":
    """A connection to the first address of a host that accepts one."""
    port = parts.port or (443 if tls else 80)
    failed: OSError = OSError("the host has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        parts.hostname, port, type=socket.SOCK_STREAM
    ):
        line = _Line(socket.socket(family, kind, protocol), deadline_s, most_bytes)
        try:
            line.connect(address, tls, parts.hostname)
        except OSError as error:
            line.close()
            failed = error
        else:
            return line
    raise failed


class _Line(io.RawIOBase):
    """A socket that ends at its deadline, and whose answer has at most `most_bytes` bytes."""

    def __init__(self, line: socket.socket, deadline_s: float, most_bytes: int) -> None:
        self._line, self._deadline_s = line, deadline_s
        self._most_bytes = self._left_bytes = most_bytes

    def connect(self, address: Any, tls: ssl.SSLContext | None, host: str | None) -> None:
        self._wait().connect(address)
        if tls:
            self._line = tls.wrap_socket(self._wait(), server_hostname=host)

    def sendall(self, data: "ReadableBuffer") -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._wait().send(rest) :]

    def readinto(self, buffer: "WriteableBuffer") -> int:
        if self._left_bytes <= 0:
            raise AskError(f"the answer is longer than {self._most_bytes} bytes")
        read = self._wait().recv_into(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= read
        return read

    def readable(self) -> bool:
        return True

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def close(self) -> None:
        super().close()
        self._line.close()

    def _wait(self) -> socket.socket:
        """The socket with its remaining time as time-out. Raises TimeoutError after the deadline."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._line.settimeout(left_s)
        return self._line
