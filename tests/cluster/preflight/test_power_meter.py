"""`cluster.preflight.power_meter` without Ray: one thread reads while another follows other nodes."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.preflight import power_meter
from cluster.preflight.gpu_power import PowerReading

DURING_S = 0.2
A, B = "a" * 56, "b" * 56
"""Ray's ids of two nodes."""


@dataclass
class FakeRay:
    """Actors in this process, numbered from 1; those in `silent` do not answer yet."""

    during_read: Callable[[], None] = lambda: None
    made: int = 0
    silent: set[Any] = field(default_factory=set)

    def remote(self, **_: Any) -> Callable[[type], Any]:
        return lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._actor))

    def _actor(self, root: Any) -> Any:
        self.made += 1
        number = self.made

        def read() -> Any:
            self.during_read()
            return (number, object())

        return SimpleNamespace(read=SimpleNamespace(remote=read))

    def wait(self, answers: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [answer for answer in answers if answer[0] not in self.silent], []

    def get(self, answer: Any) -> PowerReading:
        return PowerReading((float(answer[0]),), source="hwmon")

    def kill(self, actor: Any) -> None:
        pass


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(power_meter, "ray", fake)
    return fake


def test_an_answer_of_a_node_that_was_left_meanwhile_is_not_waited_for_again(ray: FakeRay) -> None:
    meter = power_meter.PowerMeter({A: "node"})
    leaving = threading.Thread(target=meter.follow, args=({},))

    def leave() -> None:
        ray.during_read = lambda: None
        leaving.start()
        leaving.join(DURING_S)

    ray.during_read, ray.silent = leave, {1}
    assert meter.read() == []
    leaving.join()
    meter.follow({A: "node"})
    (row,) = meter.read()
    assert row["gpu_watts"] == (2.0,), "the new actor answers, not the one that was killed"


def test_a_late_answer_is_part_of_the_next_reading(ray: FakeRay) -> None:
    meter = power_meter.PowerMeter({A: "first", B: "second"})
    ray.silent = {1}
    assert len(meter.read()) == 1
    ray.silent = set()
    assert {row["node"] for row in meter.read()} == {"first", "second"}
    meter.close()
    assert meter.nodes == () and meter.read() == []
