"""Experiments whose constants vary alone."""

from dataclasses import replace

from conf import Experiment, load
from conf.constants import constants
from conf.specs.experiment import Constant

EVEN = ["workload.arrivals.kind=constant", "search=virtual", "search.budget_s=600"]


def only_layer(*words: str) -> Experiment:
    """An experiment of which one constant is uncertain: layer_us, 100 within [80, 160]."""
    asked = load([*EVEN, *words])
    known = {name: replace(it, low=None, high=None) for name, it in fields(asked).items()}
    known["layer_us"] = Constant(100.0, "us", "a test", 80.0, 160.0)
    efficiency = asked.hardware.efficiency
    exact = {
        name: replace(getattr(efficiency, name), low=None, high=None)
        for name in ("hbm", "kv_read", "attention", "link")
    }
    return replace(
        asked,
        model=replace(asked.model, step_time=replace(asked.model.step_time, **known)),
        hardware=replace(asked.hardware, efficiency=replace(efficiency, **exact)),
    )


def fields(asked: Experiment) -> dict[str, Constant]:
    prefix = "model.step_time."
    return {path.removeprefix(prefix): it for path, it in constants(asked).items() if path.startswith(prefix)}
