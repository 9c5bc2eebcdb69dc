"""Notices between emulated engines: small messages, to the port of the real connector's own notices."""

import json
import math
from contextlib import suppress

import zmq

from serve_apps.vllm_emulated.kv_transfer import COMPUTED, RELEASE, Notice, Peer

MOST_BYTES = 4096
"""ZeroMQ closes the connection of a longer message, which cannot be a notice."""


class SideChannel:
    """Sends notices to other engines, and receives theirs at the address `at`.

    Raises ValueError for a port in use.
    """

    def __init__(self, at: Peer | None) -> None:
        self._context = zmq.Context()
        self._peers: dict[Peer, zmq.Socket[bytes]] = {}
        self._inbox: zmq.Socket[bytes] | None = None
        if at is None:
            return
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        try:
            self._inbox.bind(_url(at))
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(
                f"the notices of emulated KV transfers need {at.host}:{at.port}, which is not available "
                f"({error.strerror}); choose another port in kv_transfer_config"
            ) from error

    def send(self, peer: Peer, notice: Notice) -> None:
        """Send without waiting; a peer that has gone is sent nothing."""
        if peer not in self._peers:
            self._peers[peer] = self._context.socket(zmq.PUSH)
            self._peers[peer].connect(_url(peer))
        with suppress(zmq.Again):
            self._peers[peer].send(json.dumps(notice).encode(), zmq.NOBLOCK)

    def received(self) -> list[Notice]:
        """The notices since the last call; other messages are dropped."""
        notices = []
        while self._inbox is not None:
            try:
                message = self._inbox.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            if notice := parsed(message):
                notices.append(notice)
        return notices

    def close(self) -> None:
        self._context.destroy(linger=0)


def parsed(message: bytes) -> Notice | None:
    """The notice in a message; None for anything else, for anybody on the network may send one."""
    try:
        kind, key, *seconds = json.loads(message)
        since_s, until_s = map(float, seconds)
    except (ValueError, TypeError, RecursionError):
        return None
    known = kind in (RELEASE, COMPUTED) and isinstance(key, str)
    return Notice(kind, key, since_s, until_s) if known and math.isfinite(since_s + until_s) else None


def _url(peer: Peer) -> str:
    host = "127.0.0.1" if peer.host == "localhost" else peer.host  # ZeroMQ binds to no name
    return f"tcp://[{host}]:{peer.port}" if ":" in host else f"tcp://{host}:{peer.port}"
