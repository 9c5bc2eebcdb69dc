"""Capacities of several shapes of a node under the same drawn constants, for a choice between them."""

import math
import zlib

import numpy as np

from analysis.results.predictions import PredictionVerdict
from conf import Experiment
from loadgen.predict.draws import drawn
from loadgen.predict.uncertainty import MANY_DRAWS, Z95, smoothed
from loadgen.traffic.processes import Floats

SCOUT_S = 120.0
"""Virtual node seconds of each rate of a first look (rare requests take longer): it knows a capacity to
some 15 %."""
RANKING_S = 7200.0
"""The same for the ranking: Monte Carlo noise of 1.5 % (95 %), a twentieth of the interval."""
WORTHLESS = 0.5
"""A shape with less than this part of the best one's QPS is not the best: constants that err by 12 % (sd) in
each of the two, even unshared, leave four sd between them. It gets fewer draws, for its interval alone."""
FEW_DRAWS = 12


def joint_ln_qps(experiment: Experiment, answer: PredictionVerdict, alone: bool = False) -> Floats:
    """ln capacity in `MANY_DRAWS` sets of constants, the same sets in the same order for every experiment.

    They follow from the answer's own draws by its fitted response (`uncertainty.smoothed`), with Monte Carlo
    noise of its own. Where its draws are `alone` (not those of the others) or some lie beyond an end of the
    search they are repeated instead, and are then not joint with the others: rather too wide.
    """
    capacity, forecast = answer.capacity, answer.forecast
    assert capacity is not None and forecast is not None
    draws = forecast.of_capacity
    moved = np.zeros(MANY_DRAWS)
    if draws and draws.ln_ratios:
        sets = drawn(experiment, draws.draws)
        many = [] if alone or draws.open_draws else drawn(experiment, MANY_DRAWS)
        moved = np.array(smoothed(sets, draws.ln_ratios, many))
        if len(moved) != MANY_DRAWS:
            rng = np.random.default_rng(_seed(experiment))
            moved = rng.permutation(np.resize(moved, MANY_DRAWS))
    noise = np.random.default_rng([1, _seed(experiment)]).standard_normal(MANY_DRAWS)
    sd = (forecast.noise_pct or 0.0) / 100 / Z95
    joint: Floats = math.log(capacity.qps_per_node.value) + moved + sd * noise
    return joint


def _seed(experiment: Experiment) -> int:
    layout = experiment.layout
    return zlib.crc32(f"{layout.name} {layout.max_num_batched_tokens} {layout.prefill}".encode())
