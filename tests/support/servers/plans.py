"""Requests to servers of tests: of the default workload, or of one token to warm a service."""

import json
from collections.abc import Sequence
from typing import Any

from cluster.deployment.warmup import WarmupRequests
from conf import load
from loadgen.fleet.http_client import ClientPlan


def client_plan(urls: Sequence[str], **fields: Any) -> ClientPlan:
    """The default workload's requests to these servers; `timeout_s` is on the run's clock."""
    return ClientPlan(urls, load().workload, "m", 151936, salt=1, **fields)


def one_token(model: str) -> WarmupRequests:
    """Requests of one token."""
    request = {"model": model, "prompt": [0], "max_tokens": 1, "stream": True}
    body = json.dumps(request).encode()
    return WarmupRequests("/v1/completions", lambda _: body)
