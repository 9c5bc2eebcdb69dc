"""What a service of some rate moves, and what a load test of it takes: connections, cores, memory, bytes.

Knows rates, lengths and lives of requests, and this project's own load generator by what was measured of it;
knows no capacity. Bytes are those of HTTP bodies with their framing, without TCP and TLS.
"""

import math
from dataclasses import dataclass

from analysis.planning.evidence import MeanLengths

CLIENT_CPU_MS = 1.45
"""CPU of a load actor per request of 5600 tokens in and 140 out at 100/s, one core of a 2.5 GHz Xeon virtual
machine (CONTRIBUTING.md, Speed, 2026-11-21: `make bench`); 1.30 at its highest good rate of 640/s."""
ACTOR_MS_PER_S = 400.0
"""CPU of a core that one load actor is planned with: 40 %, under the 60 % at which a window is void
(`validity.CPU_SHARE`), since what is above comes in bursts (our choice)."""
LEAST_ACTORS = 2
ACTOR_STREAMS = 10_000
"""Open streams of one load actor: as many as were measured, without an error and on time (the same benchmark,
`python -m tests.benchmarks.open_streams`, on two cores). More were not tried in one process."""
STREAM_BYTES = 3000.0
"""Memory of one open stream in a load actor: 10,000 at once took 3.0 kB each (CONTRIBUTING.md,
2026-11-21)."""
REQUEST_BYTES, REQUEST_BYTES_PER_TOKEN = 340.0, 6.0
"""A completion's body of token ids has five digits and a comma per token; the rest is its envelope and the
headers (`loadgen.prompts`, 2026-11-22: 33.8 kB at 5600 tokens)."""
ANSWER_BYTES, ANSWER_BYTES_PER_TOKEN = 860.0, 253.0
"""One SSE event of 247 bytes in a chunk per token, as vLLM and the simulated engine write it; the rest is
usage, [DONE] and headers (`serve_apps.openai_api`, 2026-11-22: 35.8 kB of 140 tokens)."""


@dataclass(frozen=True, slots=True)
class AtScale:
    """The service at one rate; None is unknown. `open_connections` are requests in flight by Little's law.

    `client_*` are of a load test of the whole rate at once, which needs no GPU node.
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
    """What the whole service moves at a rate; without CPU per request of its own the benchmark's is taken.

    There are load actors enough for the CPU and for the open streams of the whole rate.
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
        input_tokens_per_s=_times(rate_qps, n_in),
        output_tokens_per_s=_times(rate_qps, n_out),
        request_bytes_per_s=_bytes_per_s(rate_qps, n_in, REQUEST_BYTES, REQUEST_BYTES_PER_TOKEN),
        answer_bytes_per_s=_bytes_per_s(rate_qps, n_out, ANSWER_BYTES, ANSWER_BYTES_PER_TOKEN),
        client_cpu_ms_per_request=cpu_ms,
        client_cpu_source="this run's load actors" if own else "benchmark of the load actor, 5600/140",
        client_cpu_cores=rate_qps * cpu_ms / 1e3,
        client_actors=actors,
        client_streams_per_actor=None if in_flight is None else math.ceil(in_flight / actors),
        client_stream_bytes=_times(in_flight, STREAM_BYTES),
    )


def _times(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other


def _bytes_per_s(rate_qps: float, tokens: float | None, fixed: float, per_token: float) -> float | None:
    return None if tokens is None else rate_qps * (fixed + tokens * per_token)
