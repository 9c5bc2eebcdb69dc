"""Ports held for servers that start later."""

import socket

import pytest

from cluster.ray_session import held_ports
from cluster.ray_session.held_ports import LOOPBACK, HeldPorts


def bound(port: int, reuse: bool) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
    server.bind((LOOPBACK, port))
    return server


def test_a_held_port_is_for_a_server_that_reuses_addresses_alone() -> None:
    with HeldPorts() as ports:
        port = ports.another()
        with pytest.raises(OSError, match="in use"):
            bound(port, reuse=False)
        for _ in range(2):  # as HAProxy, which is started again when it dies
            with bound(port, reuse=True) as server:
                server.listen()
    bound(port, reuse=False).close()


def test_two_sessions_never_choose_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_ports, "PORTS", held_ports.PORTS[:64])
    with HeldPorts() as ours, HeldPorts() as theirs:
        chosen = [ports.another() for ports in (ours, theirs) for _ in range(20)]
    assert len(set(chosen)) == len(chosen)
