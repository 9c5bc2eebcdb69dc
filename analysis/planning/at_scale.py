"""Traffic of a service at some rate, and the load generator that tests it: connections, cores, memory, bytes.

Bytes are those of HTTP bodies with their framing, without TCP and TLS.
"""

import math
from dataclasses import dataclass

from analysis.planning.request_means import MeanLengths

CLIENT_CPU_MS = 1.45
"""CPU of a load actor per request of 5600 tokens in and 140 out at 100/s, one core of a 2.5 GHz Xeon virtual
machine (CONTRIBUTING.md, Speed, 2026-11-21: `make bench`); 1.30 at its highest good rate of 640/s."""
ACTOR_MS_PER_S = 400.0
"""CPU that a load actor is planned with: 40 % of a core, below the 60 % at which a window is void
(`client_checks.CPU_SHARE`), because load comes in bursts (our choice)."""
LEAST_ACTORS = 2
ACTOR_STREAMS = 10_000
"""Most open streams that were measured in one load actor, without an error and on time
(`python -m tests.benchmarks.open_streams`, on two cores)."""
STREAM_BYTES = 3000.0
"""Memory of one open stream in a load actor: 10,000 took 3.0 kB each (CONTRIBUTING.md, 2026-11-21)."""
REQUEST_BYTES, REQUEST_BYTES_PER_TOKEN = 340.0, 6.0
"""Bytes of a completion request: five digits and a comma per token id, plus envelope and headers
(`loadgen.prompts`, 2026-11-22: 33.8 kB at 5600 tokens)."""
ANSWER_BYTES, ANSWER_BYTES_PER_TOKEN = 860.0, 253.0
"""Bytes of an answer: an SSE event of 247 bytes in a chunk per token, plus usage, [DONE] and headers
(`serve_apps.simulated.openai_answers`, 2026-11-22: 35.8 kB of 140 tokens)."""


@dataclass(frozen=True, slots=True)
class AtScale:
    """The service at one rate; None is unknown. `open_connections` counts requests in flight by Little's law.

    `client_*` describe a load test of the whole rate at once, which needs no GPU node.
    """

    rate_qps: float
    e2e_s: float | None
    open_connections: int | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    request_bytes_per_s: float | None
    answer_bytes_per_s: float | None
    client_cpu_ms_per_request: float
    client_cpu_source: str
    client_cpu_cores: float
    client_actors: int
    client_streams_per_actor: int | None
    client_stream_bytes: float | None


def at_scale(
    rate_qps: float, e2e_s: float | None, client_cpu_ms: float | None, lengths: MeanLengths | None
) -> AtScale:
    """The whole service at a rate; without a measured CPU per request the benchmark's is taken.

    There are enough load actors for the CPU and for the open streams of the whole rate.
    """
    in_flight = None if e2e_s is None else rate_qps * e2e_s
    own, cpu_ms = client_cpu_ms is not None, client_cpu_ms or CLIENT_CPU_MS
    by_cpu, by_streams = rate_qps * cpu_ms / ACTOR_MS_PER_S, (in_flight or 0.0) / ACTOR_STREAMS
    actors = max(LEAST_ACTORS, math.ceil(by_cpu), math.ceil(by_streams))
    n_in, n_out = (lengths.input_tokens, lengths.output_tokens) if lengths else (None, None)
    return AtScale(
        rate_qps=rate_qps,
        e2e_s=e2e_s,
        open_connections=None if in_flight is None else math.ceil(in_flight),
        input_tokens_per_s=None if n_in is None else rate_qps * n_in,
        output_tokens_per_s=None if n_out is None else rate_qps * n_out,
        request_bytes_per_s=_bytes_per_s(rate_qps, n_in, REQUEST_BYTES, REQUEST_BYTES_PER_TOKEN),
        answer_bytes_per_s=_bytes_per_s(rate_qps, n_out, ANSWER_BYTES, ANSWER_BYTES_PER_TOKEN),
        client_cpu_ms_per_request=cpu_ms,
        client_cpu_source="this run's load actors" if own else "benchmark of the load actor, 5600/140",
        client_cpu_cores=rate_qps * cpu_ms / 1e3,
        client_actors=actors,
        client_streams_per_actor=None if in_flight is None else math.ceil(in_flight / actors),
        client_stream_bytes=None if in_flight is None else in_flight * STREAM_BYTES,
    )


def _bytes_per_s(rate_qps: float, tokens: float | None, fixed: float, per_token: float) -> float | None:
    return None if tokens is None else rate_qps * (fixed + tokens * per_token)
