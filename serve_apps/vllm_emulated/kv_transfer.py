"""Transfers of KV between emulated engines: orders, arrival times, and notices between engines, which hold
differences of time, because the clocks of engines differ. Nothing is copied."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Literal, NamedTuple

import zmq

from serve_apps.engine_model.cost.links import KvLink, TransferSeconds

HOLD_S = 480.0
"""Seconds after which unread blocks are released: our choice, longer than any request waits.

MoRI-IO gives them up after 60 s (`defer_timeout`); NIXL keeps them while the decode engine renews a lease.
"""
MOST_EARLY = 10_000
"""Notices kept for requests that are not known yet; the oldest goes first."""
RELEASE, COMPUTED = "release", "computed"
_ADDRESS = r"host:(?P<host>[^,_]+),handshake:\d+,notify:(?P<port>\d+)"
_PREFILL_ID = re.compile(rf"___prefill_addr_{_ADDRESS}___decode_addr_")
_DECODE_ID = re.compile(rf"___decode_addr_{_ADDRESS}_[0-9a-f]{{32}}")


class Peer(NamedTuple):
    """The address at which another engine hears notices."""

    host: str
    port: int


NOBODY = Peer("", 0)


class Notice(NamedTuple):
    """`release`: the blocks of `key` are read at `until_s`. `computed`: it is, from `since_s` to `until_s`.

    Seconds count from when the notice is sent; those of the past are negative.
    """

    kind: str
    key: str
    since_s: float
    until_s: float


class Order(NamedTuple):
    """A request of the scheduler's side of the connector to the workers' side, with one step.

    `load`: a decode engine has taken blocks for a prompt of `peer`; with 0 tokens there is nothing to wait
    for. `push`: a prefill engine computes a prompt for `peer`, which waits already (write mode). `hold`: a
    prompt is computed, and its blocks stay until they are read.
    """

    kind: Literal["load", "push", "hold"]
    request_id: str
    key: str
    peer: Peer = NOBODY
    tokens: int = 0


class Transfers:
    """The transfers of one engine, on either side; `send` sends a notice to another engine.

    In read mode a transfer begins when the decode engine has taken blocks; the prompt is computed by then.
    In write mode (`writes`) both sides begin, and send notices about what only they know.
    """

    def __init__(self, seconds: TransferSeconds, writes: bool, send: Callable[[Peer, Notice], None]) -> None:
        self._link = KvLink(seconds)
        self._writes = writes
        self._send = send
        self._arriving: dict[str, float] = {}
        self._computing: dict[str, tuple[Order, float | None]] = {}
        # By kind and key of the notice that they wait for: an order, when it came, and until when it waits.
        self._waiting: dict[tuple[str, str], tuple[Order, float, float]] = {}
        self._early: dict[tuple[str, str], Notice] = {}

    def order(self, orders: Iterable[Order], now_s: float) -> None:
        """Begin the transfers that a step orders."""
        for order in orders:
            if order.kind == "push":
                self._computing[order.request_id] = order, None
            elif order.kind == "load" and not order.tokens:
                self._send(order.peer, Notice(RELEASE, order.key, 0.0, 0.0))
            elif order.kind == "load" and not self._writes:
                self._arrive(order, self._link.end_s(now_s, now_s, now_s, order.tokens), now_s)
            else:
                place = (COMPUTED if order.kind == "load" else RELEASE), order.key
                self._waiting[place] = order, now_s, now_s + HOLD_S
                if notice := self._early.pop(place, None):
                    self._heard(notice, now_s)

    def step(self, samples: Mapping[str, bool], begin_s: float, end_s: float, now_s: float) -> None:
        """Note the prompts of a step from `begin_s` to `end_s`; `samples` says of each if it completes it.

        The engine that waits for a prompt gets a notice when it is complete. KV flows from its first step on.
        """
        for request_id in samples.keys() & self._computing.keys():
            push, begun_s = self._computing[request_id]
            begun_s = begin_s if begun_s is None else begun_s
            self._computing[request_id] = push, begun_s
            if samples[request_id]:
                del self._computing[request_id]
                self._send(push.peer, Notice(COMPUTED, push.key, begun_s - now_s, end_s - now_s))

    def forget(self, request_ids: set[str]) -> None:
        """Requests that have ended, some before they were computed."""
        for request_id in request_ids & self._computing.keys():
            del self._computing[request_id]

    def hear(self, notice: Notice, now_s: float) -> None:
        """Take a notice of another engine; one of an unknown prompt waits until that is known."""
        place = notice.kind, notice.key
        local = notice._replace(since_s=now_s + notice.since_s, until_s=now_s + notice.until_s)
        if place in self._waiting:
            self._heard(local, now_s)
            return
        self._early[place] = local
        if len(self._early) > MOST_EARLY:
            del self._early[next(iter(self._early))]

    def finished(self, now_s: float) -> tuple[set[str], set[str]]:
        """Requests whose transfer has ended by `now_s`, each once, by vLLM's names of them.

        First those whose blocks may be released, then those whose KV has arrived or never will.
        """
        arrived = {name for name, at_s in self._arriving.items() if at_s <= now_s}
        for name in arrived:
            del self._arriving[name]
        over = [place for place, (_, _, until_s) in self._waiting.items() if until_s <= now_s]
        orders = [self._waiting.pop(place)[0] for place in over]
        sent = {order.request_id for order in orders if order.kind == "hold"}
        return sent, arrived | {order.request_id for order in orders if order.kind == "load"}

    def _heard(self, notice: Notice, now_s: float) -> None:
        order, at_s, _ = self._waiting.pop((notice.kind, notice.key))
        if notice.kind == RELEASE:
            self._waiting[notice.kind, notice.key] = order, at_s, notice.until_s
        else:
            end_s = self._link.end_s(notice.since_s, notice.until_s, at_s, order.tokens)
            self._arrive(order, end_s, now_s)

    def _arrive(self, load: Order, end_s: float, now_s: float) -> None:
        self._arriving[load.request_id] = end_s
        self._send(load.peer, Notice(RELEASE, load.key, 0.0, end_s - now_s))


def addressed(request_id: str, to_prefill: bool) -> Peer | None:
    """The engine that a request id of MoRI-IO's form names; None for other ids."""
    match = (_PREFILL_ID if to_prefill else _DECODE_ID).search(request_id)
    return Peer(match["host"], int(match["port"])) if match else None


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
