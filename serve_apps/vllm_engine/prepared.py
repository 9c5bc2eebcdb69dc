"""A vLLM engine spec made ready to deploy: its recipe, and its model folder if we write one."""

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.specs.experiment import Hardware, Layout, Model, VllmEngine
from serve_apps.engine_model.cost.architecture import weight_bytes
from serve_apps.vllm_emulated.gpu import emulated
from serve_apps.vllm_emulated.platform_plugin import installed_vllm
from serve_apps.vllm_recipes import vllm_flags
from serve_apps.vllm_recipes.model_folder import write_folder
from serve_apps.vllm_recipes.recipes import Recipe, check_request, resolve

MOST_CPU_BYTES = 4e9
"""Most bytes of random weights for a functional test on a CPU (our choice)."""
INSTALL = "make vllm, then .venv-vllm/bin/python -m loadgen ..."
"""Command that installs vLLM in an environment of its own."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An engine whose `model_path` is set where we write the folder, its recipe, and the version it is for.

    `vllm_version` is that of this machine, empty where vLLM is on the nodes only.
    """

    engine: VllmEngine
    recipe: Recipe
    vllm_version: str

    def described(self) -> dict[str, Any]:
        """The engine as the manifest keeps it; of a split layout the decode engines, and `prefill`."""
        prefill = self.recipe.prefill
        return {
            "kind": self.engine.kind,
            "server": self.engine.server,
            "vllm": self.vllm_version or None,
            "args": self.recipe.args,
            "env": self.recipe.env,
            "notes": list(self.recipe.notes),
            **({"prefill": {"args": prefill.args, "env": prefill.env}} if prefill else {}),
        }


def prepared(
    engine: VllmEngine,
    model: Model,
    layout: Layout,
    hardware: Hardware,
    request_tokens: int,
    prompt_tokens: int = 0,
) -> Prepared:
    """The engine's recipe, checked as far as possible without the nodes.

    The longest request has `request_tokens`, its answer included; a usual prompt has `prompt_tokens`.
    Writes nothing: `with_folder` does. Raises ValueError with the remedy for what cannot be deployed.
    """
    installed = installed_vllm()
    _refuse_version(engine, installed)
    _refuse_folder(engine)
    model_bytes = weight_bytes(model)
    if engine.kind == "vllm_cpu" and not engine.model_path and model_bytes > MOST_CPU_BYTES:
        raise ValueError(
            f"engine=vllm_cpu would write {model_bytes / 1e9:.0f} GB of random weights of {model.name}; use "
            "model=tiny_qwen3_moe layout=dp1_tp1 workload=smoke, or give engine.model_path=FOLDER"
        )
    recipe = recipe_of(engine, model, layout, installed, hardware)
    notes = check_request(recipe, model, request_tokens, prompt_tokens)
    if not installed and not engine.vllm_version:
        newest = vllm_flags.text(vllm_flags.NEWEST)
        notes = (*notes, f"no vLLM here: flags are those of {newest}; set engine.vllm_version to the nodes'")
    return Prepared(engine, replace(recipe, notes=(*recipe.notes, *notes)), installed)


def recipe_of(
    engine: VllmEngine, model: Model, layout: Layout, version: str, hardware: Hardware, deployed: bool = True
) -> Recipe:
    """The recipe, of both sides of a split layout; for an emulated engine with what switches emulation on.

    Raises ValueError as `resolve` and `emulated` do.
    """
    return emulated(
        resolve(engine, model, layout, version, hardware, deployed), engine, model, hardware, layout
    )


def with_folder(ready: Prepared, model: Model) -> Prepared:
    """The same with the model's folder written here, if none is named and none is downloaded."""
    engine = ready.engine
    if engine.kind == "vllm" or engine.model_path:
        return ready
    weights = engine.kind == "vllm_cpu"
    folder = write_folder(model, folder_of(model, weights), weights=weights)
    return replace(ready, engine=replace(engine, model_path=str(folder)))


def folder_of(model: Model, weights: bool) -> Path:
    """Path of the folder of `model` that we write: one for each architecture."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(repr((model, weights)).encode()).hexdigest()[:12]
    return home / "maxqps" / "models" / f"{model.served_name.replace('/', '--')}-{digest}"


def _refuse_version(engine: VllmEngine, installed: str) -> None:
    if engine.kind != "vllm" and not installed:
        raise ValueError(
            f"engine={engine.kind} needs vLLM's CPU build, which is not installed here: {INSTALL}"
        )
    wanted = engine.vllm_version
    # A build may add to its number, as 0.14.1+rocm641 does.
    if wanted and installed and vllm_flags.parse(wanted) != vllm_flags.parse(installed):
        raise ValueError(
            f"engine.vllm_version={wanted} but vLLM {installed} is installed; leave it out, or install that"
        )


def _refuse_folder(engine: VllmEngine) -> None:
    """Raise ValueError for a folder without config.json; that of a GPU engine is on the nodes only."""
    folder = engine.model_path
    if engine.kind != "vllm" and folder and not (Path(folder) / "config.json").is_file():
        raise ValueError(
            f"engine.model_path={folder} has no config.json here; leave it out, or make the folder by "
            "python -m serve_apps model FOLDER"
        )
