"""Draws what each request asks: lengths, images and session, one column at a time.

Knows the workload's distributions; knows no arrival process.
"""

from typing import Any

import numpy as np

from conf.specs.experiment import Workload
from loadgen.traffic.lengths import Ints, draw_images, draw_lengths, shared_with_all, turns
from loadgen.traffic.schedule import ArrivalSchedule
from loadgen.traffic.trace import Trace

ARRIVALS, INPUTS, OUTPUTS, SESSIONS, IMAGES = 0, 1, 2, 3, 9
"""Random columns: each has its own generator, so that the k-th length does not depend on the rate.

Changing a number changes the requests of every seed."""


def generator(seed: int, dwell: int, column: int, stream: int) -> np.random.Generator:
    """The randomness of one column of one segment and stream (-1: the pooled one)."""
    return np.random.default_rng([seed, dwell + 1, column, stream + 1])


class RequestColumns:
    """Turns due times into schedules; empirical lengths come from the lines of `recorded`."""

    def __init__(self, workload: Workload, recorded: Trace | None) -> None:
        self._workload, self._recorded = workload, recorded

    def schedule(
        self,
        due_ns: Ints,
        phase: Ints,
        lines: Ints | None = None,
        stream: int = -1,
        *,
        dwell: int,
        first_seq: int,
        seed: int,
    ) -> ArrivalSchedule:
        """The schedule of requests due at these times; empirical lengths come from the trace's `lines`."""

        def random(column: int) -> np.random.Generator:
            return generator(seed, dwell, column, stream)

        workload, count = self._workload, len(due_ns)
        input_rng = random(INPUTS)
        recorded: tuple[Ints | None, Ints | None] = None, None
        if self._recorded is not None:
            lines = input_rng.integers(len(self._recorded), size=count) if lines is None else lines
            recorded = self._recorded.input_tokens[lines], self._recorded.output_tokens[lines]
        input_tokens = draw_lengths(workload.input_tokens, count, input_rng, recorded[0])
        image_tokens = draw_images(workload.images, count, random(IMAGES))
        if image_tokens is not None:
            input_tokens = input_tokens + image_tokens
        optional: dict[str, Any] = {"image_tokens": image_tokens}
        if stream >= 0:
            optional["stream"] = np.full(count, stream, dtype=np.int64)
        if workload.sessions:  # the same users in every segment
            session = random(SESSIONS).integers(workload.sessions, size=count)
            optional |= {"session": session, "turn": turns(session)}
        return ArrivalSchedule(
            dwell=dwell,
            seq=np.arange(first_seq, first_seq + count, dtype=np.int64),
            due_ns=due_ns,
            phase=phase,
            input_tokens=input_tokens,
            output_tokens=draw_lengths(workload.output_tokens, count, random(OUTPUTS), recorded[1]),
            shared_tokens=shared_with_all(input_tokens, workload.prefix_hit),
            **optional,
        )
