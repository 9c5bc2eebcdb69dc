"""What can be chosen: typed specs and the YAML files that fill them. Imports nothing of ours."""

from conf.load import ConfigError, load
from conf.specs.experiment import Experiment

__all__ = ["ConfigError", "Experiment", "load"]
