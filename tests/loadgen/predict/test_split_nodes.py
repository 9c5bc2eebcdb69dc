"""loadgen/cli/engine_model.py: split nodes; what is drawn, what is said of the transfer, how rates follow."""

import math

import numpy as np
import pytest

from analysis.results.asked import constants_basis
from conf import load
from loadgen.cli.engine_model import MODEL, guess_qps, simulate
from loadgen.predict import replay
from loadgen.predict.answer import at_rate
from loadgen.predict.draws import drawn, layout_name
from tests.support.runs.verdict_trees import screen

RATE, LATENCY = "layout.transfer.gpu_bytes_per_s", "layout.transfer.latency_ms"


def test_transfers_are_drawn_alike_for_all_split_layouts_and_not_for_others() -> None:
    one, other, whole = (
        drawn(load([f"layout={name}"]), 48) for name in ("1p1d_tp4_ep4", "3p1d_tp2_ep2", "dp2_tp4_ep4")
    )
    for path in (RATE, LATENCY):
        assert [each[path] for each in one] == [each[path] for each in other]
        assert path not in whole[0]
    rates = np.array([each[RATE] for each in one])
    assert 1e10 < rates.min() < 2.1e10 and 6e10 < rates.max() < 9e10


def test_a_layout_whose_engines_are_alike_shares_their_pace() -> None:
    names = ["dp2_tp4_ep4", "1p1d_tp4_ep4", "2p1d", "dp1_tp8"]
    assert [layout_name(load([f"layout={name}"]).layout) for name in names] == [
        "TP4/EP4",
        "TP4/EP4",
        "TP2/EP2 + TP4/EP4",
        "TP8",
    ]


def test_an_answer_says_what_it_takes_for_the_transfer_with_its_intervals() -> None:
    split = at_rate(load(["layout=3p1d_tp2_ep2", "search.budget_s=60", "rate_qps=3"]), MODEL, draws=0)
    said = screen(split)
    assert "50 [20, 64] GB/s per GPU and 5 [1, 25] ms per prompt, pulled" in said and "assumed" in said
    assert "prefill engines" in said
    found = split.forecast
    assert found is not None and found.prefill_busy is not None and found.busy is not None
    assert 0 < found.prefill_busy < 1 and sum(each or 0.0 for each in found.step_terms.values()) == (
        pytest.approx(1.0)
    )
    exact = load(["layout=1p1d_tp4_ep4", f"{RATE}.value=1e10", "layout.transfer_mode=write"])
    assert "10 (exact) GB/s per GPU" in constants_basis(exact).transfer
    assert constants_basis(load(["layout=dp1_tp8_ep8"])).transfer == ""


def test_more_prefill_engines_serve_more_long_prompts_by_guess_and_by_peaks() -> None:
    asked = {name: load([f"layout={name}"]) for name in ("1p1d_tp4_ep4", "3p1d_tp2_ep2")}
    guesses = [guess_qps(one) or math.nan for one in asked.values()]
    assert guesses[0] < guesses[1]
    machines = [MODEL.machine(one) for one in asked.values()]
    assert [one.prefill_engines for one in machines] == [1, 3]
    assert machines[0].peak_flop_per_s == machines[1].peak_flop_per_s
    assert [2 * one.layout.gpus_per_node for one in asked.values()] == [16, 16]


@pytest.mark.parametrize("mode", ["read", "write"])
def test_a_replay_on_a_split_node_has_the_gaps_of_its_decode_engines(mode: str) -> None:
    words = ["rate_qps=8", "requests=40", "seed=0", "workload.input_tokens.mean=2000"]
    split = load([*words, "layout=1p1d_tp4_ep4", f"layout.transfer_mode={mode}"])
    whole = load([*words, "layout=dp2_tp4_ep4"])
    times, others = (replay.played(one, simulate) for one in (split, whole))
    assert (times.first_s > times.sent_s).all()
    # No prompt is computed between the tokens of an answer.
    assert np.nanmax(times.own_itl_s) < 0.5 * np.nanmax(others.own_itl_s)
