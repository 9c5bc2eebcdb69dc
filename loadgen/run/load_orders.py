"""The plans that an experiment gives its fleet and its driver, and the room they need; starts nothing."""

import math

from conf import Experiment
from loadgen.drive.plan import LoadPlan
from loadgen.fleet.fleet import FleetError, LoadFleet
from loadgen.fleet.gap_record import GapRecord
from loadgen.fleet.load_actor import FleetPlan
from loadgen.run.service import Service
from loadgen.search.window_plan import Start

STREAMS_SPARE = 2.0
"""Requests in flight at the bounds, times this, must fit into the actors' files and ports (our choice)."""


def fleet_plan(asked: Experiment, service: Service, salt: int) -> FleetPlan:
    """The plan that every load actor gets; `salt` tells the prompts of this run from those of others."""
    return FleetPlan(
        urls=service.urls,
        workload=asked.workload,
        model=asked.model.served_name,
        vocab=asked.model.vocab,
        salt=salt,
        timeout_s=asked.request_timeout_s,
        gaps=GapRecord.of(asked.slo, asked.fleet.record_itl),
        time_scale=asked.time_scale,
        sticky=asked.routing.policy == "client_side",
        access=service.access,
        target=asked.target,
    )


def load_plan(asked: Experiment, service: Service, start: Start) -> LoadPlan:
    """The plan that the driver follows from `start`."""
    return LoadPlan(
        search=asked.search,
        slo=asked.slo,
        workload=asked.workload,
        nodes=asked.cluster.nodes,
        seed=asked.seed,
        start=start,
        warmup_requests=asked.fleet.warmup_requests,
        replicas=service.replicas,
        streams=asked.streams,
        time_scale=asked.time_scale,
        block_tokens=asked.block_tokens,
    )


def refuse_cramped(asked: Experiment, fleet: LoadFleet, service: Service, start: Start) -> None:
    """Raise FleetError where requests in flight do not fit into the fleet's files and ports or the proxy."""
    guess = asked.rate_qps or max([qps for _, qps in asked.profile_qps], default=0.0)
    qps = (guess or start.prediction_qps or start.roofline_qps or 0.0) * asked.cluster.nodes
    wanted = asked.concurrency or math.ceil(STREAMS_SPARE * qps * asked.answer_s)
    if reason := fleet.shortage(wanted):
        raise FleetError(reason)
    if service.front_streams is not None and wanted > service.front_streams:
        raise FleetError(
            f"HAProxy takes {service.front_streams} of {wanted} streams at once, the others would wait, "
            "which counts as TTFT: raise the hard limit of open files (`ulimit -Hn`, 2.5 for a stream) "
            "where Ray is started, ask for a lower rate, or use routing=client_side or per_node"
        )
