"""Words of command lines, and tables of cases."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[2] / "data" / "analysis_cases.yaml"
TABLES: dict[str, list[Any]] = yaml.safe_load(DATA.read_text())
"""Tables of what tests of `analysis` ask, and what they expect."""


def over(words: Iterable[str], *more: str) -> list[str]:
    """The words without those that `more` gives anew, and then `more`."""
    given = {word.partition("=")[0] for word in more}
    return [*(word for word in words if word.partition("=")[0] not in given), *more]


IMAGE = "registry.example/maxqps:1@sha256:" + "0" * 64


HOSTS = "10.0.0.1,10.0.0.2,10.0.0.3"


KUBERAY = ["kuberay", "cluster=mi325x_4n", "--image", IMAGE]


SERVICE = ["--service", "--token-secret", "token", "engine=vllm", "engine.model_path=/weights/qwen"]


RATE_QPS, SECONDS, TRIES = 6.0, 25.0, 5
"""Half a minute's work, of an answer that nobody waits for."""


WORDS = [
    "engine=vllm_cpu",
    "model=tiny_qwen3_moe",
    "layout=dp1_tp1",
    "workload=smoke",
    "slo.ttft_p90_ms=500",
    "slo.tpot_p90_ms=30",
    "search.expected_qps=4",
    "search.budget_s=40",
    "search.window_s=8",
    "search.transition_s=2",
    "search.first_transition_s=2",
    "search.highest_qps=12",
    "fleet.warmup_requests=8",
    "fleet.drain_s=10",
]
QUEUE = ["engine.args.enable_per_request_metrics=true", "slo.queue_p90_ms=500"]
"""Words with which vLLM tells of each request how long it waited for its first place in a step."""
