"""Requests to servers of tests: of the default workload, or of one token to warm a service."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cluster.deployment.warmup import WarmupRequests
from conf import Experiment, load
from conf.io.http_get import DEFAULT_ACCESS, Access
from loadgen.fleet.http_client import ClientPlan


@cache
def _experiment(timeout_s: float, time_scale: float, sticky: bool, record_itl: bool) -> Experiment:
    plain = load(["routing=client_side", "workload=chat_sessions"] if sticky else [])
    fleet = replace(plain.fleet, request_timeout_s=timeout_s, record_itl=record_itl)
    engine: Any = plain.engine
    return replace(plain, fleet=fleet, engine=replace(engine, time_scale=time_scale))


def client_plan(
    urls: Sequence[str],
    timeout_s: float = 120.0,
    time_scale: float = 1.0,
    sticky: bool = False,
    record_itl: bool = True,
    access: Access = DEFAULT_ACCESS,
) -> ClientPlan:
    """The default workload's requests to these servers; `timeout_s` is on the run's clock."""
    return ClientPlan(_experiment(timeout_s, time_scale, sticky, record_itl), urls, access, salt=1)


def one_token(model: str) -> WarmupRequests:
    request = {"model": model, "prompt": [0], "max_tokens": 1, "stream": True}
    body = json.dumps(request).encode()
    return WarmupRequests("/v1/completions", lambda _: body)
