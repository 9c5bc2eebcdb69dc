"""The pace of the quality gate's questions and the load beside them; sends nothing."""

from dataclasses import dataclass

from conf import Experiment

QUESTION_SHARE = 0.5
"""Share of the load's tokens that the questions replace: with both together the service does the work of the
rate that is asked (our choice)."""
MOST_PER_S = 32.0
"""Most questions per second: threads of one process ask them (our choice)."""
MOST_IN_FLIGHT = 64
IDLE_IN_FLIGHT = 8
"""Questions in flight at a service without other load: a small batch (our choice)."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Questions come `per_s`, or with None as fast as others end, and at most `in_flight` at once.

    `load_qps` is the rate per node of the load beside them.
    """

    load_qps: float
    per_s: float | None
    in_flight: int

    @property
    def words(self) -> str:
        """The pace in words."""
        if self.per_s is None:
            return f"without other load, {self.in_flight} in flight"
        return f"{self.per_s:.1f} a second beside {self.load_qps:.2f} QPS per node of load"


def gate_pace(experiment: Experiment) -> Pace:
    """The pace at which questions and load together are the work of the rate `quality.load`."""
    rate_qps = experiment.quality.rate_qps
    if not rate_qps:
        return Pace(0.0, None, IDLE_IN_FLIGHT)
    workload, quality = experiment.workload, experiment.quality
    request = workload.input_tokens.mean + workload.output_tokens.mean
    question = quality.prompt_tokens + quality.answer_tokens
    whole = rate_qps * experiment.cluster.nodes
    per_s = min(QUESTION_SHARE * whole * request / question, MOST_PER_S)
    load = whole - per_s * question / request
    return Pace(load / experiment.cluster.nodes, per_s, MOST_IN_FLIGHT)


def longest_s(experiment: Experiment, pace: Pace) -> float | None:
    """Seconds of asking both sides all prompts, the first one twice; None if the service decides."""
    return None if pace.per_s is None else 3 * experiment.quality.prompts / pace.per_s
