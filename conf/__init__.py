"""The configuration: typed specs and the YAML files that fill them. Imports nothing of ours."""

from typing import TYPE_CHECKING

from conf.io.lazy import lazy

if TYPE_CHECKING:
    from conf.composed import load
    from conf.specs.experiment import Experiment
    from conf.words import ConfigError

__all__ = ["ConfigError", "Experiment", "load"]
__getattr__ = lazy(
    "conf", {"ConfigError": "conf.words", "Experiment": "conf.specs.experiment", "load": "conf.composed"}
)
