"""Ports of a session of our own, held from their choice until the session ends."""

import secrets
import socket
from contextlib import ExitStack, suppress

LOOPBACK = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Above Ray's workers, below Serve's replicas and the kernel's usual choice."""


class HeldPorts(ExitStack):
    """Free ports of the loopback address. Until it is closed no other process gets one of them.

    Seconds pass between the choice of a port and the start of its server; meanwhile another session may
    choose it, or the kernel may give it to a connection where its range has been widened.
    A server listens on such a port if it sets SO_REUSEADDR, as Ray's, Serve's and HAProxy do: the socket
    that holds it never listens.
    """

    def another(self) -> int:
        """One more free port."""
        while True:
            holder = self.enter_context(socket.socket())
            with suppress(OSError):
                holder.bind((LOOPBACK, secrets.choice(PORTS)))
                # Only now: set before, two holders could share a port.
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                return int(holder.getsockname()[1])
