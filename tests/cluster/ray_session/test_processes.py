"""`cluster.ray_session.processes`: which processes the end of a session kills."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cluster.ray_session.processes import kill_processes_of

SLEEP = "import sys, time; print(flush=True); time.sleep(600)"


@contextmanager
def sleeping(*words: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with these words in its command line, which has begun to run."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEP, *words], env={**os.environ, **environment}, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    with process:
        try:
            yield process
        finally:
            process.kill()


def test_only_processes_of_the_session_end_and_no_editor_of_its_files(tmp_path: Path) -> None:
    log = f"{tmp_path}/session/logs/raylet.out"
    with ExitStack() as started:
        left_over = started.enter_context(sleeping(log, RAY_TMPDIR=str(tmp_path)))
        editor = started.enter_context(sleeping(log))
        other = started.enter_context(sleeping(log, RAY_TMPDIR=f"{tmp_path}-2"))
        load = started.enter_context(sleeping("load", RAY_TMPDIR=str(tmp_path)))
        kill_processes_of(tmp_path)
        assert left_over.wait(30) == -9
        assert [process.poll() for process in (editor, other, load)] == [None] * 3
