"""A stand-in for ROCm's Python module amdsmi."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest


class AmdSmiError(Exception):
    """What the module raises for a GPU that does not support a question."""


def install_amdsmi(
    monkeypatch: pytest.MonkeyPatch, gpus: Sequence[dict[str, Any]], has_driver: bool = True
) -> None:
    """Make `import amdsmi` find a module whose GPUs have these facts; a missing fact is an error."""

    def init() -> None:
        if not has_driver:
            raise AmdSmiError("AMDSMI_STATUS_DRIVER_NOT_LOADED")

    def fact(name: str) -> Any:
        def read(gpu: dict[str, Any]) -> Any:
            if name not in gpu:
                raise AmdSmiError("AMDSMI_STATUS_NOT_SUPPORTED")
            return gpu[name]

        return read

    module: Any = ModuleType("amdsmi")
    module.AmdSmiException = AmdSmiError
    module.amdsmi_init = init
    module.amdsmi_get_processor_handles = lambda: list(gpus)
    module.amdsmi_get_gpu_asic_info = fact("asic")
    module.amdsmi_get_power_info = fact("power")
    monkeypatch.setitem(sys.modules, "amdsmi", module)
