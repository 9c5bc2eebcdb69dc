"""The address that a live view listens on: loopback unless a host is asked for."""

import ipaddress
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

from conf import ConfigError
from conf.io.one_line import one_line, reason

LOOPBACK = "127.0.0.1"
LOCAL_NAMES = frozenset(("localhost", LOOPBACK, "::1"))
MOST_PORT = 2**16 - 1


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 is one that the system chooses."""

    host: str
    port: int

    @classmethod
    def from_words(cls, words: str, flag: str) -> "Address":
        """The address that `PORT` or `HOST:PORT` means. Raises ConfigError that names the flag."""
        host, colon, port = words.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (port.isascii() and port.isdigit() and int(port[:6]) <= MOST_PORT) or (colon and not host):
            raise ConfigError(
                f"{flag} {one_line(words, 80)}: give a port from 0 (any that is free) to {MOST_PORT}, which "
                "listens on this machine alone, or HOST:PORT"
            )
        return cls(host or LOOPBACK, int(port))

    @property
    def family(self) -> socket.AddressFamily:
        """The family of the socket that it needs."""
        return socket.AF_INET6 if ":" in self.host else socket.AF_INET

    @property
    def is_loopback(self) -> bool:
        """True of an address that only this machine reaches."""
        number = _number(self.host)
        return self.host in LOCAL_NAMES or (number is not None and number.is_loopback)

    @property
    def url(self) -> str:
        """The page's URL; of all interfaces by this machine's own name."""
        number, host = _number(self.host), self.host
        if number is not None and number.is_unspecified:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"

    def is_named(self, host: str) -> bool:
        """True if the Host header of a request may be `host`, with or without a port.

        A page of a stranger, whose name he lets point to this machine, sends that name. A number is no name.
        """
        host = host.strip().lower()
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name in LOCAL_NAMES or name == self.host.lower():
            return True
        if self.is_loopback:
            return False
        return _number(name) is not None or name == socket.gethostname().lower()

    def refuse_taken(self, flag: str) -> None:
        """Raise ConfigError where nothing can listen on it now."""
        with closing(socket.socket(self.family, socket.SOCK_STREAM)) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((self.host, self.port))
                tried.listen(1)
            except OSError as error:
                raise self.refusal(flag, error) from error

    def refusal(self, flag: str, error: OSError) -> ConfigError:
        """The error of an address that cannot be listened on."""
        return ConfigError(
            f"{flag} {self.host}:{self.port}: cannot listen there ({error.strerror or reason(error)}); "
            "choose another port, or 0 for one that is free"
        )


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host)
    return None
