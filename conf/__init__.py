"""The configuration: typed specs and the YAML files that fill them. Imports nothing of ours."""

from conf.load import load
from conf.specs.experiment import Experiment
from conf.words import ConfigError

__all__ = ["ConfigError", "Experiment", "load"]
