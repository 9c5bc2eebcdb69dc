"""One run of requests on engines that begin empty, with the gaps between the tokens of every request.

Knows engines and a balancer; knows no workload, no bound and no quantile over requests.
"""

from collections.abc import Sequence

import numpy as np

from conf.schema import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model import whole
from serve_apps.engine_model.balance import Balance
from serve_apps.engine_model.closed import serve_circle
from serve_apps.engine_model.fast import FastEngine, Floats, Ints, Machine, Times, checked

LATE_GAP = 0.99
"""The gap that stands for a request is its own 99 % quantile, as other tools print it."""


def replay(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    sent_s: Floats,
    asked: Sequence[Ints],
    concurrency: int = 0,
    seed: int = 0,
    replicas: int = 1,
    balance: Balance = Balance(),  # noqa: B008  # frozen
) -> tuple[Times, Floats]:
    """All requests to their end, and the late gap of each in seconds; `asked`: prompt, output, shared tokens.

    They come at `sent_s`, or with a `concurrency` in a closed loop behind one balancer. Gaps are nan of an
    answer of one token, and of all where the engine has to be simulated block by block. Raises Unfit for a
    closed loop that needs books of every block, and ValueError as `whole.serve` does.
    """
    engine = spec, model, hardware, layout
    if concurrency:
        times = serve_circle(Machine.of(*engine), concurrency, asked, seed, replicas, balance)
    else:
        times = whole.serve(*engine, sent_s, asked, seed, replicas, balance)
    gaps = np.full(len(times.sent_s), np.nan)
    if np.isnan(times.work.busy_s):
        return times, gaps
    machine = Machine.of(*engine)
    for replica in range(replicas):
        mine = np.flatnonzero(times.replica == replica)
        own = [column[mine] for column in checked(machine, asked)]
        alone = FastEngine(machine, int(own[1].max(initial=1)), seed, steps=times.work.steps)
        if concurrency and replicas == 1:
            alone.serve_closed(concurrency, own)
        else:  # between two sends engines do not touch each other: each serves again what it got
            alone.serve(times.sent_s[mine], own)
        gaps[mine] = _late_gaps(alone, own[1])
    return times, gaps


def _late_gaps(engine: FastEngine, output_tokens: Ints) -> Floats:
    """The late gap of every request of an engine that has served all and kept the ends of its steps."""
    gaps = np.full(len(output_tokens), np.nan)
    for number in np.flatnonzero(output_tokens > 1).tolist():
        gaps[number] = np.quantile(np.diff(engine.token_times(number)), LATE_GAP)
    return gaps
