"""The time in which a prompt's KV gets from one engine to another."""

import math
from dataclasses import dataclass

from conf.specs.experiment import Layout, Model
from serve_apps.engine_model.cost.architecture import kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class TransferSeconds:
    """Seconds that a transfer works per token, and its latency, which delays no other transfer.

    `last_share` of a prompt's work is left when its last layer is computed, if KV flows layer by layer.
    """

    per_token_s: float
    latency_s: float
    last_share: float = 1.0

    @classmethod
    def of(cls, model: Model, layout: Layout) -> "TransferSeconds":
        """The seconds of a split layout, each GPU of whose narrower side moves its part; else ValueError."""
        if layout.prefill is None:
            raise ValueError(f"layout {layout.name} has no prefill engines: no KV is transferred")
        narrower = min(layout.tensor_parallel, layout.prefill.tensor_parallel)
        bytes_per_token = kv_bytes_per_token(model, narrower)
        latency_s = layout.transfer.latency_ms.value * 1e-3
        return cls(bytes_per_token / layout.transfer.gpu_bytes_per_s.value, latency_s, 1 / model.layers)

    def work_s(self, tokens: int) -> float:
        """Time for which the KV of so many tokens occupies the link."""
        return tokens * self.per_token_s

    def left_s(self, tokens: int, begun_s: float, computed_s: float, taken_s: float) -> float:
        """Work left at `computed_s` of a prompt computed since `begun_s`, whose layers are pushed meanwhile.

        They can be pushed since `taken_s`, when there are blocks for them. The last layer always is left.
        """
        return left_s(self.work_s(tokens), self.last_share, begun_s, computed_s, taken_s)


def left_s(work_s: float, last_share: float, begun_s: float, computed_s: float, taken_s: float) -> float:
    """The same of a transfer of `work_s`; of plain numbers, so that numba can compile it."""
    flown_s = max(0.0, computed_s - max(begun_s, taken_s))
    return max(work_s - flown_s, work_s * last_share)


class KvLink:
    """The way into one decode engine: prompts come one after the other, in the order of the calls."""

    def __init__(self, seconds: TransferSeconds) -> None:
        self._seconds = seconds
        self._free_s = -math.inf

    def end_s(self, start_s: float, tokens: int) -> float:
        """End of a transfer that may begin at `start_s`, when its KV exists and there are blocks for it."""
        return self._carry(start_s, self._seconds.work_s(tokens))

    def written_s(self, begun_s: float, computed_s: float, taken_s: float, tokens: int) -> float:
        """End of a transfer that goes on while the prompt is computed, from `begun_s` to `computed_s`.

        `taken_s` is when the decode engine has blocks. Alone on the link it ends at the later of the
        computation and what is left then, and of `taken_s` and the whole transfer. What flows before the
        end of the computation is taken to hinder no other prompt.
        """
        left_s = self._seconds.left_s(tokens, begun_s, computed_s, taken_s)
        return self._carry(max(computed_s, taken_s), left_s)

    def _carry(self, ready_s: float, work_s: float) -> float:
        self._free_s = max(self._free_s, ready_s) + work_s
        return self._free_s + self._seconds.latency_s
