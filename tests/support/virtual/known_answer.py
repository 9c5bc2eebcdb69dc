"""A service with a known answer: p90 TPOT is 20 ms x QPS per node x some constants; p90 TTFT is 100 ms."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from conf import Experiment, load
from conf.constants import constants
from conf.specs.experiment import Constant
from conf.specs.model import Posterior
from loadgen.predict.answer import EngineModel, NodePeaks
from loadgen.predict.operating_point import Simulated
from loadgen.traffic.schedule import NS, ArrivalSchedule

LAYER, STEP = "model.step_time.layer_us", "model.step_time.step_ms"
DEPLOYMENT, LAYOUT = "model.step_time.deployment_scale", "model.step_time.layout_scale"
KNOWN = {LAYER: 100.0, STEP: 2.0, DEPLOYMENT: 1.0, LAYOUT: 1.0}
"""The values at which 5 QPS take 100 ms; of step_ms the square root counts, of the others they themselves."""
EVEN = ["workload.arrivals.kind=constant", "search=virtual", "search.budget_s=600"]


def slowness(experiment: Experiment) -> float:
    known = constants(experiment)
    ln = {path: math.log(known[path].value / value) for path, value in KNOWN.items()}
    return math.exp(sum(ln.values()) - ln[STEP] / 2)


def simulate(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, _seed: int) -> Simulated:
    due_s = arrivals.due_ns / NS
    qps = (len(due_s) - 1) / (due_s[-1] - due_s[0]) / nodes
    tpot_s = 0.020 * qps * slowness(experiment)
    last_s = due_s + 0.1 + tpot_s * (arrivals.output_tokens - 1)
    work = {"busy_s": 30.0, "kv_token_seconds": 1e6}
    return Simulated(due_s, due_s + 0.1, last_s, np.zeros(len(due_s)), work)


def queueing(experiment: Experiment, arrivals: ArrivalSchedule, nodes: int, seed: int) -> Simulated:
    """`simulate` of a node that ends six requests a second at most, fewer where it is slower."""
    served = simulate(experiment, arrivals, nodes, seed)
    turn_s = np.arange(1, len(served.first_s) + 1) * slowness(experiment) / 6.0
    wait_s = np.maximum(turn_s - arrivals.due_ns / NS, 0.0)
    return served._replace(first_s=served.first_s + wait_s, last_s=served.last_s + wait_s)


MODEL = EngineModel(
    simulate,
    lambda experiment: NodePeaks(8e6, 2e16, 4e10, 3e6, lambda work: {"all": work["busy_s"] / 30}),
    lambda _: 9.0,
)


def unsure(factors: Mapping[str, float], *words: str, posterior: Posterior | None = None) -> Experiment:
    """An experiment whose constants are exact but for those in `factors`: to each side by such a factor."""
    experiment = load([*EVEN, *words])
    changed: dict[str, dict[str, Constant]] = {"model": {}, "hardware": {}}
    for path, constant in constants(experiment).items():
        factor = factors.get(path)
        value = KNOWN.get(path, constant.value or float(factor is not None))  # 0 has no interval
        ends = (value / factor, value * factor) if factor else (None, None)
        group, _, name = path.split(".")
        changed[group][name] = replace(constant, value=value, low=ends[0], high=ends[1])
    model, hardware = experiment.model, experiment.hardware
    return replace(
        experiment,
        model=replace(
            model,
            step_time=replace(model.step_time, **changed["model"]),
            posterior=posterior or Posterior(),
        ),
        hardware=replace(hardware, efficiency=replace(hardware.efficiency, **changed["hardware"])),
    )


def only_layer(*words: str) -> Experiment:
    """An experiment of which one constant is uncertain: layer_us, 100 within [80, 160]."""
    exact = unsure({}, *words)
    layer = replace(exact.model.step_time.layer_us, low=80.0, high=160.0)
    times = replace(exact.model.step_time, layer_us=layer)
    return replace(exact, model=replace(exact.model, step_time=times))


def joint(r: float, a: str = LAYER, b: str = STEP, hardware: tuple[str, ...] = ()) -> Posterior:
    """Two constants of one fit."""
    return Posterior("rows of a test", list(hardware), {a: [1.0, r], b: [r, 1.0]})
