"""Plans of requests to servers of tests."""

from collections.abc import Sequence
from typing import Any

from conf import load
from loadgen.fleet.http_client import ClientPlan


def client_plan(urls: Sequence[str], **fields: Any) -> ClientPlan:
    """The default workload's requests to these servers; `timeout_s` is on the run's clock."""
    return ClientPlan(urls, load().workload, "m", 151936, salt=1, **fields)
