"""The configuration: typed specs and the YAML files that fill them. Imports nothing of ours."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conf.compose import load
    from conf.io.check import ConfigError
    from conf.specs.experiment import Experiment

__all__ = ["ConfigError", "Experiment", "load"]


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` (PEP 562): it imports a name of `homes` from the module that stands there.

    Help need not wait for them. No name may be that of a module of the package, whose import would hide it.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return find


__getattr__ = lazy(
    "conf", {"ConfigError": "conf.io.check", "Experiment": "conf.specs.experiment", "load": "conf.compose"}
)
