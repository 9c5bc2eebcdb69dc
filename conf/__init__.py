"""The configuration: typed specs and the YAML files that fill them. Imports nothing of ours."""

from typing import TYPE_CHECKING

from conf.io.lazy import lazy

if TYPE_CHECKING:
    from conf.compose import load
    from conf.io.check import ConfigError
    from conf.specs.experiment import Experiment

__all__ = ["ConfigError", "Experiment", "load"]
__getattr__ = lazy(
    "conf", {"ConfigError": "conf.io.check", "Experiment": "conf.specs.experiment", "load": "conf.compose"}
)
