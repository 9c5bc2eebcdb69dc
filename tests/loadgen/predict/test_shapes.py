"""loadgen/predict/grid.py: capacities of shapes under the same draws share what is no noise."""

from functools import cache

import numpy as np
import pytest

from analysis.results.predictions import PredictionVerdict
from conf import Experiment
from loadgen.cli import engine_model, prediction
from loadgen.predict.grid import joint_ln_qps
from loadgen.predict.uncertainty import DRAWS, MANY_DRAWS


@cache
def asked(*words: str) -> tuple[Experiment, PredictionVerdict]:
    experiment = prediction.checked([*words, "search.budget_s=1200"], None)
    return experiment, engine_model.predict(experiment, draws=DRAWS)


def joint(*words: str, alone: bool = False) -> np.ndarray:
    return joint_ln_qps(*asked(*words), alone=alone)


@pytest.mark.slow
def test_two_layouts_move_together() -> None:
    """Both rest on the same fitted constants, so that their ratio is known better than either."""
    one, other = joint("layout=dp1_tp8_ep8"), joint("layout=dp2_tp4_ep4")
    assert len(one) == MANY_DRAWS
    assert np.std(one - other) < 0.9 * np.hypot(np.std(one), np.std(other))
    budget = joint("layout=dp1_tp8_ep8", "layout.max_num_batched_tokens=4096")
    assert np.corrcoef(one, budget)[0, 1] > 0.9


@pytest.mark.slow
def test_the_draws_lie_around_the_estimate_as_wide_as_the_interval() -> None:
    drawn, q = joint("layout=dp1_tp8_ep8"), asked("layout=dp1_tp8_ep8")[1].capacity.qps_per_node  # type: ignore[union-attr]
    low, high = np.exp(np.quantile(drawn, (0.025, 0.975)))
    assert (low, high) == pytest.approx((q.low, q.high), rel=0.05)


@pytest.mark.slow
def test_draws_alone_are_shared_with_nobody() -> None:
    one, other = joint("layout=dp1_tp8_ep8"), joint("layout=dp1_tp8_ep8", alone=True)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.1
    assert np.std(other) == pytest.approx(np.std(one), rel=0.25)
