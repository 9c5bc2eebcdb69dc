"""A fleet and a service without Ray, whose answers come from the engine model."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conf import Experiment, load
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.run.jobs import OfferLoad, PowerSource, Service, Site
from loadgen.search.window_plan import Start
from tests.support.virtual.virtual_drivers import engines
from tests.support.virtual.virtual_target import VirtualTarget

EXPERIMENT = load(["search=quick", "fleet.warmup_requests=4"])


class VirtualFleet(VirtualTarget):
    """The fleet's seam over the engine model, so that a run takes no time."""

    members: tuple[()] = ()
    zero_wall_ns = 0
    left_behind: tuple[()] = ()

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(engines(EXPERIMENT))

    def shortage(self, wanted: int) -> None:
        """A virtual clock needs no files."""

    def finish(self, drain_s: float) -> None:
        """Nothing is in flight on a virtual clock that stands still."""


@contextmanager
def service(
    leaving: BaseException | None = None,
    entering: BaseException | None = None,
    front_streams: int | None = None,
    power: PowerSource | None = None,
) -> Iterator[Service]:
    if entering:
        raise entering
    yield Service(["http://127.0.0.1:1"], front_streams=front_streams, power=power, power_unknown="as said")
    if leaving:
        raise leaving


def site(start: Start, **how: Any) -> Site:
    """The site of that service, where a search begins at `start`."""
    return Site(lambda *_: (start, None), lambda *_: service(**how))


class HoldRate(OfferLoad):
    """A probe of `qps` per node for so many seconds after a transition."""

    def __init__(self, experiment: Experiment, qps: float, seconds: float, transition_s: float) -> None:
        super().__init__(experiment)
        self._window = qps, seconds, transition_s

    def load(self, driver: Driver) -> None:
        programs.offer_rate(driver, *self._window)
