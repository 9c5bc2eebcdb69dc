"""Takes the URLs of servers apart, looks them up before the load, and chooses one for each request."""

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from conf.io.http_get import PLAIN, Access

MASK_64 = 2**64 - 1

Protocol = TypeVar("Protocol", bound=asyncio.Protocol)


def chosen(seq: int, count: int) -> int:
    """One of `count` URLs for request (or session) `seq`: as good as random, and the same in every run.

    Every k-th arrival would be a smoother process. The mixing is SplitMix64's (Steele, Lea, Flood, OOPSLA
    2014).
    """
    mixed = (seq + 1) * 0x9E3779B97F4A7C15 & MASK_64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK_64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK_64
    return (mixed ^ mixed >> 31) % count


@dataclass(frozen=True, slots=True)
class Server:
    """One URL, taken apart and looked up once; `head` is all of a request before its content length.

    `addresses` are tried in order; without any the name alone is looked up again.
    """

    head: bytes
    host: str
    addresses: Sequence[str]
    port: int
    tls: ssl.SSLContext | None

    async def connected(self, protocol: Callable[[], Protocol]) -> Protocol:
        """A connection to the first address that takes one. Raises what the last one was refused with."""
        loop, name = asyncio.get_running_loop(), self.host if self.tls else None
        for address in self.addresses[:-1]:
            with suppress(OSError):
                _, made = await loop.create_connection(
                    protocol, address, self.port, ssl=self.tls, server_hostname=name
                )
                return made
        _, made = await loop.create_connection(
            protocol, self.addresses[-1], self.port, ssl=self.tls, server_hostname=name
        )
        return made


def server(url: str, path: str, access: Access, tls: ssl.SSLContext | None) -> Server:
    """The server behind a URL, which takes requests at `path`; its name is looked up now, which may block."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    lines = [
        f"POST {parts.path.rstrip('/')}{path} HTTP/1.1",
        f"Host: {parts.netloc.rpartition('@')[2]}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Accept-Encoding: {PLAIN}",
        *(f"{name}: {value}" for name, value in access.headers.items()),
    ]
    head = "\r\n".join([*lines, "Content-Length: "]).encode()
    port = parts.port or (443 if secure else 80)
    host = parts.hostname or ""
    return Server(head, host, _addresses(host, port), port, tls if secure else None)


def _addresses(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, the best one first; its name again if it has none now."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError):  # ValueError: no name of a host
        return (host,)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in addresses)) or (host,)
