"""The plan of a run's load, and what earlier sessions of the run left."""

from dataclasses import dataclass, replace

import pyarrow as pa

from analysis.capacity.rules import BLOCK_TOKENS
from conf import Experiment
from conf.specs.experiment import Search, Slo, Workload
from loadgen.search.window_plan import MeasuredWindow, Start


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of a run. `replicas` are the ids expected in answers, None if unknown.

    `streams` are the independent streams of arrivals, one for each node; 0 where all nodes share one.
    All times are on a clock that runs `time_scale` times as fast as the real one. A prefix cache serves
    whole blocks of `block_tokens`.
    """

    search: Search
    slo: Slo
    workload: Workload
    nodes: int
    seed: int
    start: Start
    warmup_requests: int = 0
    replicas: frozenset[str] | None = None
    streams: int = 0
    time_scale: float = 1.0
    block_tokens: int = BLOCK_TOKENS

    @classmethod
    def from_experiment(
        cls, experiment: Experiment, replicas: frozenset[str] | None, start: Start
    ) -> "LoadPlan":
        """The plan of an experiment's load on a service with these replicas."""
        return cls(
            search=experiment.search,
            slo=experiment.slo,
            workload=experiment.workload,
            nodes=experiment.cluster.nodes,
            seed=experiment.seed,
            start=start,
            warmup_requests=experiment.fleet.warmup_requests,
            replicas=replicas,
            streams=experiment.streams,
            time_scale=experiment.time_scale,
            block_tokens=experiment.block_tokens,
        )

    @property
    def begin(self) -> Start:
        """The search's start, with the times that follow from the bounds."""
        lasts_s = self.slo.answer_s(self.workload.output_tokens.mean)
        return replace(self.start, ttft_s=self.slo.first_token_ms / 1e3, answer_s=lasts_s)


@dataclass(frozen=True, slots=True)
class Past:
    """Finished `windows` of earlier sessions of a run, with their judgements but not yet counted again.

    `rows` are theirs; `next_seq`, `end_ns` and `next_client` are beyond all that was used; `elapsed_s` is the
    budget spent.
    """

    windows: list[MeasuredWindow]
    rows: pa.Table
    next_seq: int
    end_ns: int
    elapsed_s: float
    next_client: int
