"""The plan of all requests of a run: frozen before the start, handed on as it is down to every client."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from conf import Experiment
from conf.io.http_get import DEFAULT_ACCESS, Access
from conf.specs.experiment import Workload
from conf.specs.routing import Endpoints
from loadgen.fleet.gap_record import EVERY_GAP, GapRecord
from loadgen.fleet.parent_watch import WatchedProcess, own

TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """The requests of a run: their form, the servers at `urls`, and what is kept of the answers.

    `salt` separates the prompts of this run from those of others, and `target` names the fields of a request.
    With `sticky` the session of a request chooses its URL. `timeout_s` is on the run's clock, which runs
    `time_scale` times as fast as the real one. Load actors end with the process `driver`.
    """

    urls: Sequence[str]
    workload: Workload
    model: str
    vocab: int
    salt: int
    timeout_s: float = TIMEOUT_S
    gaps: GapRecord = EVERY_GAP
    time_scale: float = 1.0
    sticky: bool = False
    access: Access = DEFAULT_ACCESS
    target: Endpoints = field(default_factory=Endpoints)
    driver: WatchedProcess = field(default_factory=own)

    @classmethod
    def from_experiment(
        cls, experiment: Experiment, urls: Sequence[str], access: Access, salt: int
    ) -> "ClientPlan":
        """The plan of an experiment's requests to these servers."""
        return cls(
            urls=urls,
            workload=experiment.workload,
            model=experiment.model.served_name,
            vocab=experiment.model.vocab,
            salt=salt,
            timeout_s=experiment.request_timeout_s,
            gaps=GapRecord.from_bounds(experiment.slo, experiment.fleet.record_itl),
            time_scale=experiment.time_scale,
            sticky=experiment.routing.policy == "client_side",
            access=access,
            target=experiment.target,
        )

    @property
    def real_timeout_s(self) -> float:
        """The timeout in real seconds."""
        return self.timeout_s / self.time_scale
