"""The simulated service as Ray Serve's config files name it; knows arguments, and nothing of a session."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.serve import Application

from conf import ConfigError, load
from conf.specs.experiment import SimulatedEngine
from serve_apps.simulated.app import build_app

BUILDER = f"{__name__}:application"
"""The `import_path` of a config file."""


def application(args: Mapping[str, Any]) -> Application:
    """The application of `experiment`, the text of a saved configuration.

    How many engines run is for the config file to say. Raises ConfigError for another engine or a split one.
    """
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "config.yaml"
        saved.write_text(args["experiment"])
        experiment = load(base=saved)
    if not isinstance(experiment.engine, SimulatedEngine) or experiment.layout.prefill is not None:
        raise ConfigError("a Serve config file of ours holds one kind of simulated engine")
    return build_app(experiment)
