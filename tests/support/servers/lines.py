"""A request under way on a connection to nowhere, whose reads a test makes."""

from types import SimpleNamespace

from loadgen.fleet.exchange import Exchange
from loadgen.fleet.http_client import Client
from loadgen.fleet.http_connection import Connection
from loadgen.traffic.schedule import Planned
from tests.support.servers.plans import client_plan


class Line:
    """One request on a connection of its own, of the client of an `other` line if given."""

    def __init__(self, tokens: int, other: "Line | None" = None) -> None:
        self.ended: list[Exchange] = other.ended if other else []
        self.exchange = Exchange(Planned(0, 0, "window", 0, 500, tokens))
        self.client = other.client if other else Client(client_plan(["http://127.0.0.1"]), self.ended.append)
        self.connection = Connection(self.client, "http://127.0.0.1")
        wire = SimpleNamespace(write=len, abort=lambda: None, is_closing=lambda: False)
        self.connection.connection_made(wire)  # type: ignore[arg-type]
        self.connection.send(self.exchange, b"POST")
