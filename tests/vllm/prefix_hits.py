"""The intended hit rate against the measured one: a short probe, its usage, and vLLM's own counters."""

import numpy as np
import pytest

from analysis.figures.server_state import state
from analysis.rows import metrics
from loadgen.drive import fixed_rate, prepared_load
from loadgen.run import measure
from loadgen.traffic.schedule import NS
from tests.vllm.running import Up

SHARES = 0.0, 0.5, 0.95
POINT = 0.01
BLOCKS = 20
"""Of every prompt: each share is whole blocks of it, and a prefix cache serves no others."""
RATE_QPS, WINDOW_S, TRANSITION_S = 6, 4, 1.0
COUNTERS = QUERIES, HITS = "prefix_cache_queries_total", "prefix_cache_hits_total"


def hold_to(share: float, up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probe with prompts of which so much is shared: vLLM finds that in its cache, and no more.

    A probe as a user has it, but for what goes before its window, in which caches would only become fuller.
    The counters are taken over its window from its own samples, and over all of it from vLLM's pages: there
    they agree with the usages token by token.
    """
    monkeypatch.setattr(fixed_rate, "TRANSITION_S", TRANSITION_S)
    monkeypatch.setattr(prepared_load, "PIECE_S", TRANSITION_S)
    asked = {
        "run": f"hits-{share:g}",
        "workload.prefix_hit": share,
        "workload.input_tokens.mean": BLOCKS * up.block_tokens(),
        "rate_qps": RATE_QPS,
        "duration_s": WINDOW_S,
        "search.expected_qps": 2 * RATE_QPS,  # the warm-up has half of it
    }
    before = up.counters(COUNTERS)
    tree, run = up.run("probe", measure.hold, *(f"{key}={value}" for key, value in asked.items()))
    counted = {name: value - before[name] for name, value in up.counters(COUNTERS).items()}

    rows = run.requests()
    assert counted[QUERIES] == np.nansum(metrics.numbers(rows, "prompt_tokens")) > 0, tree["reason"]
    assert counted[HITS] == np.nansum(metrics.numbers(rows, "cached_tokens"))
    (window,) = run.dwells().to_pylist()
    ends_s = np.array([window["window_start_ns"], window["window_end_ns"]]) / NS
    assert window["prefix_hit_intended"] == pytest.approx(share)
    assert window["prefix_hit"] == pytest.approx(share, abs=POINT)
    assert state(run.timeseries(), ends_s).hit_pct[1] / 100 == pytest.approx(share, abs=POINT)
    (check,) = (check for check in tree["checks"] if check["name"] == "prefix_hit_error")
    assert check["passed"] is True
