"""Process 1 of a host of the tests: makes the host's own files, then keeps its unit running as systemd would.

It runs in fresh namespaces (`tests.hosts.network` starts it) as this file alone, without packages. Its word
is one JSON object. All mounts are in its own mount namespace and end with it.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STAGE = Path("/mnt")
"""Where a host's disk is mounted before it is seen as /tmp; hidden from nobody else."""
GO = Path("/run/maxqps-go")
"""A file that exists once the host's network is up."""
SHM = Path("/dev/shm")
CLOCK = Path("/run/maxqps-clock")
"""Nanoseconds by which the wall clock of the host's Python is ahead (`clock/sitecustomize.py`)."""


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def own_files(host: dict[str, Any]) -> None:
    """Give this host a disk (/tmp), shared memory, /run and /etc; of the caller's /tmp it sees `kept`."""
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", f"size={host['disk_bytes']}", "tmpfs", str(STAGE))
    for name in ("tmp", "etc", "work"):
        (STAGE / name).mkdir()
    (STAGE / "tmp").chmod(0o1777)
    kept = Path(host["kept"])
    if kept.is_relative_to("/tmp"):
        inside = STAGE / kept.relative_to("/")
        inside.mkdir(parents=True)
        mount("--bind", str(kept), str(inside))
    write_etc(STAGE / "etc", host["etc"])
    mount(
        "-t", "overlay", "-o", f"lowerdir=/etc,upperdir={STAGE}/etc,workdir={STAGE}/work", "overlay", "/etc"
    )
    mount("--rbind", str(STAGE / "tmp"), "/tmp")
    mount("-t", "tmpfs", "-o", f"size={host['shm_bytes']}", "tmpfs", str(SHM))
    mount("-t", "tmpfs", "-o", "size=1m", "tmpfs", "/run")
    CLOCK.write_bytes(bytes(8))


def write_etc(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o400 if "token" in name else 0o644)
        path.write_text(text)


def keep_running(unit: dict[str, Any], log: Path) -> None:
    """Run the unit's command until it ends well, and begin again after a failure (Restart=on-failure)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # of a container; the unit's line asks for more
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(unit["files"], most),) * 2)
    while True:
        for check in unit["checks"]:
            subprocess.run(check, check=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                unit["start"], env=unit["environment"], cwd="/", stdout=output, stderr=output
            )
        if wait(process.pid) == 0:
            return
        time.sleep(unit["restart_s"])


def wait(child: int) -> int:
    """The exit status of `child`; every orphan that ends meanwhile is reaped, as process 1 has to."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def main() -> None:
    host = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    socket.sethostname(host["name"])
    own_files(host)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while not GO.exists():
        time.sleep(0.02)
    keep_running(host["unit"], Path("/tmp/unit.log"))
    with contextlib.suppress(ChildProcessError):
        wait(-1)
    signal.pause()


if __name__ == "__main__":
    main()
