"""Keeps a Serve replica on the loopback address if Ray keeps to it."""

import socket
from collections.abc import Callable
from functools import partial

import ray
from ray.serve._private import replica as serve_replica

LOOPBACK = "127.0.0.1"


def stay_on_loopback() -> None:
    """Bind the replica's own gRPC port to the loopback address if Ray keeps to it.

    Serve binds it to all interfaces after the constructor, and has no setting for it.
    """
    if ray.util.get_node_ip_address() == LOOPBACK:
        bind = serve_replica.add_port_to_grpc_server
        serve_replica.add_port_to_grpc_server = partial(_bind_to_loopback, bind)


def reserved_port() -> socket.socket:
    """A socket that holds a free port of the loopback address, for a server that sets SO_REUSEADDR.

    Until it is closed no other process is given the port; a server may listen on it, for this one does not.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((LOOPBACK, 0))
    return holder


def listener(host: str) -> socket.socket:
    """A socket bound to a free port of an address of this machine, for a server to listen on."""
    bound = socket.socket()
    bound.bind((host, 0))
    return bound


def _bind_to_loopback(bind: Callable[[object, str], int], server: object, address: str) -> int:
    return bind(server, f"{LOOPBACK}:{address.rpartition(':')[2]}")
