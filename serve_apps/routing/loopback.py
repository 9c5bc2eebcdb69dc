"""Ports of a Serve replica on the loopback address, if Ray itself uses that address."""

import socket

import ray

from conf.ray_patches import LOOPBACK as LOOPBACK
from conf.ray_patches import replica_ports_on_loopback


def stay_on_loopback() -> None:
    """Bind the replica's own gRPC port to the loopback address if the Ray node has that address."""
    if ray.util.get_node_ip_address() == LOOPBACK:
        replica_ports_on_loopback()


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
