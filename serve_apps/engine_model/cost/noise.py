"""Noise of the step time: of single steps, slow drift, and stalls."""

import math

import numpy as np
from numpy.typing import NDArray

from conf.specs.experiment import SimulatedEngine

CHUNK_STEPS = 4096


class Noise:
    """Draws of what lengthens steps: `step_noise_cv`, `drift_sd` and `stall_every_steps`; 0 is none.

    Each source has a generator of its own, so that switching one on leaves the others' draws as they were.
    All is drawn in chunks of steps: `factors` multiply durations, `stalls_s` are added, `gauss` drive drift.
    """

    def __init__(self, spec: SimulatedEngine, seed: int) -> None:
        variance = math.log1p(spec.step_noise_cv**2)
        self._mu, self._sigma = -variance / 2, math.sqrt(variance)
        self.drift_sd, self.memory_s = spec.drift_sd, spec.drift_memory_s
        self._stall_share = 1 / spec.stall_every_steps if spec.stall_every_steps else 0.0
        self._stall_s = spec.stall_mean_s
        self._steps, self._drifts, self._stalls = (
            np.random.default_rng([seed, source]) for source in (1, 2, 3)
        )
        self.silent = not (self._sigma or spec.drift_sd or self._stall_share)
        self.drift = spec.drift_sd * float(self._drifts.standard_normal())

    def draw(self) -> None:
        """The next chunk."""
        size = CHUNK_STEPS
        self.factors: NDArray[np.float64] = np.exp(self._mu + self._sigma * self._steps.standard_normal(size))
        self.gauss: NDArray[np.float64] = self._drifts.standard_normal(size)
        stalls = self._stalls.random(size) < self._stall_share
        self.stalls_s: NDArray[np.float64] = np.where(
            stalls, self._stalls.exponential(self._stall_s, size), 0.0
        )


def drifted(drift: float, gap_s: float, sd: float, memory_s: float, gauss: float) -> float:
    """ln of the slowness `gap_s` later: a stationary AR(1) process (Ornstein and Uhlenbeck)."""
    kept = math.exp(-max(0.0, gap_s) / memory_s)
    return kept * drift + sd * math.sqrt(1 - kept * kept) * gauss
