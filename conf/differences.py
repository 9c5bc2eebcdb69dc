"""Differences between two experiments, key by key."""

from dataclasses import asdict
from typing import Any

from conf.specs.experiment import Experiment
from conf.trees import flat


def differences(a: Experiment, b: Experiment) -> dict[str, list[Any]]:
    """Dotted keys whose values differ -> the values of A and B; None if one lacks the key."""
    flat_a, flat_b = flat(asdict(a)), flat(asdict(b))
    keys = [*flat_a, *(key for key in flat_b if key not in flat_a)]
    return {key: [flat_a.get(key), flat_b.get(key)] for key in keys if flat_a.get(key) != flat_b.get(key)}
