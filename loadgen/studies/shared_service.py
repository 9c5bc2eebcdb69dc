"""A service that stays up from one run to the next as long as the next one needs the same deployment.

Deploying is handed in.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from conf import Experiment
from loadgen.run.endpoint import TargetError
from loadgen.run.jobs import Service
from loadgen.run.progress import Emit
from loadgen.studies.matrix_study import same_service
from loadgen.traffic.traffic import Traffic

Deploy = Callable[[Experiment, Emit], AbstractContextManager[Service]]


class SharedService:
    """Lends one service at a time; takes it down for a run that needs another, after an error, or by `close`.

    `runs` are all runs that may come: a service has room for the largest fleet and the longest requests of
    those that share it. Progress of a service between two runs goes to `show`.
    """

    def __init__(self, deploy: Deploy, runs: Sequence[Experiment], show: Emit) -> None:
        self._deploy, self._runs, self._show = deploy, runs, show
        self._emit = show
        self._stack = ExitStack()
        self._up: tuple[Experiment, Service] | None = None
        self._failed: tuple[Experiment, TargetError] | None = None

    @contextmanager
    def service(self, experiment: Experiment, emit: Emit) -> Iterator[Service]:
        """The service for one run, as a `Site` has it. Raises TargetError if its deployment fails, or has
        failed before.
        """
        self._emit = emit
        try:
            yield self._lent(experiment)
        except BaseException:
            self.close()
            raise
        finally:
            self._emit = self._show

    def close(self) -> None:
        """Take down the service that is up; a teardown that fails is reported and left."""
        self._up = None
        try:
            self._stack.close()
        except TargetError as error:
            self._tell("teardown", text=f"the previous service did not go down cleanly: {error}")

    def _lent(self, experiment: Experiment) -> Service:
        if self._failed and same_service(self._failed[0], experiment):
            raise TargetError(f"not deployed again: {self._failed[1]}")
        if self._up and same_service(self._up[0], experiment):
            fault = self._up[1].fault()
            if fault is None:
                self._tell("deployed", text="the service of the previous run is up and serves this one too")
                return self._lend(experiment, self._up[1])
            self._tell("deploying", text=f"the service of the previous run is deployed again: {fault}")
        self.close()
        try:
            service = self._stack.enter_context(self._deploy(self._roomy(experiment), self._tell))
        except TargetError as error:
            self._failed = experiment, error
            raise
        return self._lend(experiment, service)

    def _roomy(self, experiment: Experiment) -> Experiment:
        """The experiment with the largest fleet and the longest requests of all that share its service."""
        sharing = [one for one in self._runs if same_service(one, experiment)]
        fleets, workloads = [one.fleet for one in sharing], [one.workload for one in sharing]
        return replace(
            experiment,
            fleet=max(fleets, key=lambda fleet: fleet.actors * fleet.cpus_per_actor),
            workload=max(workloads, key=lambda workload: Traffic(workload).longest_request_tokens),
        )

    def _lend(self, experiment: Experiment, service: Service) -> Service:
        """The service; after a recovery the next run gets the recovered one."""
        self._up = experiment, service
        recover = service.recover
        if recover is None:
            return service
        return replace(service, recover=lambda limit_s: self._lend(experiment, recover(limit_s)))

    def _tell(self, kind: str, /, **facts: Any) -> None:
        self._emit(kind, **facts)
