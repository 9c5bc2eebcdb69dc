"""Counts the streams that a load actor can hold open before the operating system refuses one."""

import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SPARE_FILES = 64
"""Files left for what a process opens beside its streams: the shard, logs, name look-ups, sockets of
Ray's."""
PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
OPEN_FILES = Path("/proc/self/fd")
NO_LIMIT = 2**31


@dataclass(frozen=True, slots=True)
class Limits:
    """Files that this process may open and has open, and the ports of one source address for each (host,
    port).

    All processes of a machine share its ports. A limit that is not set or known is `NO_LIMIT`.
    """

    soft_files: int
    hard_files: int
    open_files: int
    ports: int


def limits() -> Limits:
    """The limits of this process now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Limits(_count(soft), _count(hard), _open_files(), _ports())


def raise_files() -> None:
    """Lift the soft limit of open files to the hard one, which needs no privilege."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # the kernel allows less than the limit says; `shortage` will tell
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def streams(limits: Limits, endpoints: int, sharing: int = 1) -> int:
    """Streams that one of `sharing` load actors of a machine can hold open to so many (host, port)."""
    return min(_by_files(limits), limits.ports * endpoints // sharing)


def shortage(limits: Limits, endpoints: int, wanted: int, sharing: int = 1) -> str | None:
    """The limit that is too small for `wanted` streams in one load actor, with the remedy; or None."""
    most = streams(limits, endpoints, sharing)
    if wanted <= most:
        return None
    short = f"a load actor can hold {most} of {wanted} streams open"
    if most == _by_files(limits):
        return (
            f"{short}: raise `ulimit -n` (hard limit {limits.hard_files}) where Ray is started, "
            "or use more fleet.actors"
        )
    ours = f", shared by {sharing} load actors" if sharing > 1 else ""
    return (
        f"{short}: {limits.ports} ports for each of {endpoints} URL(s){ours}; widen "
        "net.ipv4.ip_local_port_range, or use more target.urls or fleet.actors on other nodes"
    )


def _by_files(limits: Limits) -> int:
    return max(0, limits.soft_files - limits.open_files - SPARE_FILES)


def _count(limit: int) -> int:
    return NO_LIMIT if limit == resource.RLIM_INFINITY else limit


def _open_files() -> int:
    """Files open now, without the one that lists them."""
    try:
        return sum(1 for _ in OPEN_FILES.iterdir()) - 1
    except OSError:
        return 0


def _ports() -> int:
    try:
        first, last = map(int, PORT_RANGE.read_text().split())
    except (OSError, ValueError):
        return NO_LIMIT
    return max(0, last - first + 1)
