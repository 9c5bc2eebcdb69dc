"""Runs a command on a machine that stands still for 2.2 s after each second.

    python -m tests.support.machine.stutter [--burners N] -- pytest tests/loadgen/fleet -m "not ray"

The command and what it starts are a process group, which SIGSTOP and SIGCONT reach as a whole. Its exit code
is the exit code of this one.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

RUN_S, STOP_S = 1.0, 2.2
"""Seconds that the group runs and then stands still, in turn."""
BURN = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**5))"
"""Computes until its parent is gone."""


def run(words: Sequence[str], burners: int) -> int:
    """The exit code of the command `words`, which is stopped again and again until it ends."""
    # Orphaned while it stands still, a group of the same session gets SIGHUP and SIGCONT from the kernel.
    with burning(burners), subprocess.Popen(words, process_group=0, stdin=subprocess.DEVNULL) as command:
        try:
            while _runs(command, RUN_S):
                _signal(command, signal.SIGSTOP)
                # A stopped process does not end, but another may kill it.
                _runs(command, STOP_S)
                _signal(command, signal.SIGCONT)
        finally:
            for number in (signal.SIGTERM, signal.SIGCONT) if command.poll() is None else ():
                _signal(command, number)
        code = command.returncode
    return 128 - code if code < 0 else code


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    burners = [subprocess.Popen([sys.executable, "-IS", "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def _runs(command: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """True if the command has not ended after so long."""
    with suppress(subprocess.TimeoutExpired):
        command.wait(seconds)
    return command.poll() is None


def _signal(command: "subprocess.Popen[bytes]", number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(command.pid, number)


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> int:
    """Parse the command line and run its command."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.machine.stutter", description=__doc__)
    parser.add_argument("--burners", type=int, default=0, help="processes that compute meanwhile")
    parser.add_argument("command", nargs="+", help="a program of this environment and its words, after --")
    chosen = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, _terminated)
    return run(chosen.command, chosen.burners)


if __name__ == "__main__":
    sys.exit(main())
