"""What a step lasts beyond its arithmetic: noise of single steps, slow drift, stalls; knows no scheduler."""

import math
import random

from conf.schema import SimulatedEngine


class Noise:
    """Lengthens steps as the engine's `step_noise_cv`, `drift_sd` and `stall_every_steps` say; 0 is none.

    Each source has a generator of its own, so that switching one on leaves the others' draws as they were.
    """

    def __init__(self, spec: SimulatedEngine, seed: int) -> None:
        variance = math.log1p(spec.step_noise_cv**2)
        self._mu, self._sigma = -variance / 2, math.sqrt(variance)
        self._drift_sd, self._memory_s = spec.drift_sd, spec.drift_memory_s
        self._stall_share = 1 / spec.stall_every_steps if spec.stall_every_steps else 0.0
        self._stall_s = spec.stall_mean_s
        self._steps, self._drifts, self._stalls = (random.Random(f"{seed}{name}") for name in ("", "d", "s"))
        self._drift = self._drift_sd * self._drifts.gauss(0.0, 1.0)
        self._drifted_at_s = 0.0

    def lengthen(self, duration_s: float, now_s: float) -> float:
        """The duration of a step that begins at `now_s`, which never goes back."""
        if self._sigma:
            duration_s *= self._steps.lognormvariate(self._mu, self._sigma)
        if self._drift_sd:
            duration_s *= math.exp(self._drifted(now_s))
        if self._stall_share and self._stalls.random() < self._stall_share:
            duration_s += self._stalls.expovariate(1 / self._stall_s)
        return duration_s

    def _drifted(self, now_s: float) -> float:
        """ln of the slowness now: a stationary AR(1) process of the asked memory (Ornstein and Uhlenbeck)."""
        kept = math.exp(-max(0.0, now_s - self._drifted_at_s) / self._memory_s)
        self._drift = kept * self._drift + self._drift_sd * math.sqrt(1 - kept**2) * self._drifts.gauss(
            0.0, 1.0
        )
        self._drifted_at_s = now_s
        return self._drift
