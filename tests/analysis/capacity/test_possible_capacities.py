"""`analysis.capacity.posterior`: no figure of random windows is impossible."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity.limit_posterior import Prior
from analysis.capacity.posterior import posterior
from analysis.capacity.window_counts import NS, Window, WindowCounts, count
from analysis.rows.records import table
from conf.specs.experiment import Lengths, Slo, Workload

WORKLOAD = Workload("w", Lengths(100), Lengths(50))
WINDOW_S = 45
FAR = 20.0
"""No end that is claimed lies so many times as high, or as low, as every rate that was offered."""
ENDS = {
    "timeout": {"first_token_offset_ns": None, "last_token_offset_ns": None, "output_tokens": None},
    "pending": {"end_offset_ns": None, "last_token_offset_ns": None, "output_tokens": None},
    "ok": {},
}

windows = st.fixed_dictionaries(
    {
        "rate_qps": st.floats(0.05, 4.0),
        "ttft_ms": st.floats(10.0, 5000.0),
        "spread": st.floats(0.0, 2.0),
        "timeout": st.sampled_from([0.0, 0.0, 0.05, 1.0]),
        "pending": st.sampled_from([0.0, 0.0, 0.3]),
        "aborted": st.booleans(),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def counted(index: int, facts: dict[str, Any], slo: Slo) -> WindowCounts:
    """A window of random requests, by the facts of it."""
    chance, start_s, rate_qps = np.random.default_rng(facts["seed"]), WINDOW_S * index, facts["rate_qps"]
    rows = []
    for due_s in np.sort(chance.uniform(start_s, start_s + WINDOW_S, chance.poisson(rate_qps * WINDOW_S))):
        ttft_ms, tpot_ms = np.array([facts["ttft_ms"], 20.0]) * np.exp(
            facts["spread"] * chance.normal(size=2)
        )
        first_ns, tokens = int(ttft_ms * 1e6), int(chance.integers(1, 60))
        last_ns = first_ns + int(tpot_ms * 1e6 * (tokens - 1))
        row = {"window_index": index, "due_ns": int(due_s * NS), "send_offset_ns": 0, "output_tokens": tokens}
        row |= {"first_token_offset_ns": first_ns, "last_token_offset_ns": last_ns, "end_offset_ns": last_ns}
        row |= {"requested_input_tokens": 100, "requested_output_tokens": tokens}
        status = chance.choice(["timeout", "pending"], p=[0.5, 0.5])
        status = status if chance.random() < facts[status] else "ok"
        rows.append(row | {"status": status} | ENDS[status])
    edges_ns = (start_s * NS, start_s * NS, (start_s + WINDOW_S) * NS, (start_s + WINDOW_S) * NS)
    window = Window(index, "window", rate_qps, 1, *edges_ns, aborted=facts["aborted"])
    return count(table(rows), window, slo, WORKLOAD, edges_ns[-1] + 5 * NS)


def check(facts: list[dict[str, Any]], tpot_ms: float, off: float) -> None:
    """Whatever was seen, the figures are positive, finite and in order, and a far end is said to be open."""
    slo = Slo(ttft_p90_ms=1000.0, tpot_p90_ms=tpot_ms)
    rates_qps = [fact["rate_qps"] for fact in facts]
    centre = math.log(float(np.mean(rates_qps))) + off
    seen = [counted(index, fact, slo) for index, fact in enumerate(facts)]
    capacity = posterior(seen, Prior(centre))
    figures = [capacity.low, capacity.certified, capacity.qps_per_node, capacity.high]
    assert figures[0] > 0 and math.isfinite(figures[-1]) and figures == sorted(figures)
    assert capacity.open_above or capacity.high < FAR * max(rates_qps)
    assert capacity.open_below or capacity.low > min(rates_qps) / FAR
    assert 0 <= capacity.binding_probability <= 1
    for limit in capacity.limits.values():
        assert 0 < limit.low <= limit.qps_per_node <= limit.high < math.inf
        assert limit.phi >= 1 and 0 <= limit.over <= limit.determined


@settings(max_examples=5)
@given(st.lists(windows, min_size=1, max_size=3), st.sampled_from([15.0, 50.0]), st.floats(-1.0, 1.0))
def test_a_capacity_is_a_positive_interval_around_its_estimate_or_open(
    facts: list[dict[str, Any]], tpot_ms: float, off: float
) -> None:
    check(facts, tpot_ms, off)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(windows, min_size=1, max_size=6), st.sampled_from([15.0, 25.0, 50.0]), st.floats(-1.5, 1.5))
def test_so_it_is_for_many_more_windows(facts: list[dict[str, Any]], tpot_ms: float, off: float) -> None:
    check(facts, tpot_ms, off)
