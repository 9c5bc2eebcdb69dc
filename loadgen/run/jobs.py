"""What a run does with its driver: search for the capacity, offer one load, or require a rate."""

from abc import ABC, abstractmethod

from analysis.results.types.run_verdict import RunVerdict
from conf import Experiment
from loadgen.drive import fixed_rate
from loadgen.drive import require as required_rate
from loadgen.drive.driver import Driver
from loadgen.drive.sweep import sweep
from loadgen.run import verdicts


class Job(ABC):
    """The work of one run: `load` the service, then a `verdict` once every row is final."""

    verb = "sweep"

    def __init__(self, experiment: Experiment) -> None:
        self.experiment = experiment

    @abstractmethod
    def load(self, driver: Driver) -> None:
        """Load the service. Raises TargetLost for a service that stays away."""

    @abstractmethod
    def verdict(self, driver: Driver) -> RunVerdict:
        """The verdict on what `load` has seen, all of it counted again on the rows as they were saved."""


class SearchCapacity(Job):
    """The job of a sweep."""

    def load(self, driver: Driver) -> None:
        self._sweep = sweep(driver)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.sweep_verdict(self.experiment, driver, self._sweep, "wall")


class OfferLoad(Job):
    """The job of a probe: one window of the load that the experiment names."""

    verb = "probe"

    def load(self, driver: Driver) -> None:
        fixed_rate.offer_load(driver, self.experiment)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.probe_verdict(self.experiment, driver)


class RequireRate(Job):
    """The job of a probe that passes or fails one rate."""

    verb = "probe"

    def load(self, driver: Driver) -> None:
        assert self.experiment.rate_qps
        longest_s = required_rate.seconds(self.experiment)
        self._required = required_rate.require(driver, self.experiment.rate_qps, longest_s)

    def verdict(self, driver: Driver) -> RunVerdict:
        return verdicts.required_verdict(self.experiment, driver, self._required)
