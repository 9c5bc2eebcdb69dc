"""`cluster.deployment.removal`: an application's processes are known with all that they started."""

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.deployment import removal
from cluster.ray_session.own_machine import process_of, running, with_descendants
from tests.support.machine.patience import until

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


def test_an_engine_that_outlives_its_replica_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state: Any = SimpleNamespace(status="ABSENT")
    monkeypatch.setattr(removal, "state", lambda _: state)
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as replica:
        assert replica.stdout is not None
        engine = int(replica.stdout.readline())
        processes = with_descendants({replica.pid})
        assert {pid for pid, _ in processes} == {replica.pid, engine}
        replica.kill()
        replica.wait()
        assert removal._left("app", [], processes) == f"1 processes still run (pids {engine})"
        subprocess.run(["kill", "-KILL", str(engine)], check=True)
        until(lambda: removal._left("app", [], processes) is None, "a dead process counts as running")


def test_a_number_that_was_given_to_another_process_is_not_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        ours = process_of(process.pid)
        assert running([ours, (process.pid, ours[1] + 1)]) == {ours}
        assert with_descendants({2**22 + 1}) == set()
        process.kill()
    assert running([ours]) == set()
