"""Settings of deployments as they were published, and presets; the tables are published_recipes.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conf.io import bounded_yaml
from conf.specs.experiment import Layout, Model


@dataclass(frozen=True, slots=True)
class Published:
    """Settings that one source printed for a model and a layout; `remark` says what it did not print."""

    model: str
    tensor_parallel: int
    replicas_per_node: int
    expert_parallel: bool
    version: str
    source: str
    remark: str
    args: Mapping[str, Any]
    env: Mapping[str, str]

    def fits(self, layout: Layout) -> bool:
        cut = (layout.tensor_parallel, layout.replicas_per_node, layout.expert_parallel)
        return cut == (self.tensor_parallel, self.replicas_per_node, self.expert_parallel)

    @property
    def cut(self) -> str:
        experts = f"/EP{self.tensor_parallel}" if self.expert_parallel else ""
        return f"{self.replicas_per_node} x TP{self.tensor_parallel}{experts}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Arguments of vLLM by their Python names, and environment variables."""

    args: Mapping[str, Any]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PublishedRecipes:
    """The tables: recipes, profiles by name, our preset, and what it adds for a model by name."""

    recipes: tuple[Published, ...]
    profiles: Mapping[str, dict[str, Any]]
    modern: Settings
    modern_models: Mapping[str, Settings]


@cache
def tables() -> PublishedRecipes:
    """The tables, read once."""
    tree = bounded_yaml.read(Path(__file__).with_name("published_recipes.yaml").read_text())
    return PublishedRecipes(
        tuple(_recipe(tree["bases"][row.pop("base")], row) for row in tree["recipes"]),
        tree["profiles"],
        Settings(**tree["modern"]),
        {name: Settings(**row) for name, row in tree["modern_models"].items()},
    )


def _recipe(base: Mapping[str, Any], row: Mapping[str, Any]) -> Published:
    args = {"tensor_parallel_size": row["tensor_parallel"], **base["args"], **row.get("args", {})}
    env = {**base["env"], **row.get("env", {})}
    return Published(**{"replicas_per_node": 1, **base, **row, "args": args, "env": env})


def find(model: Model, layout: Layout) -> Published:
    """Published settings of the model and layout. Raises ValueError with the known ones if there are none."""
    recipes = tables().recipes
    of_model = [recipe for recipe in recipes if recipe.model == model.name]
    if not of_model:
        names = ", ".join(sorted({recipe.model for recipe in recipes}))
        raise ValueError(
            f"engine.recipe=published: there is none of {model.name}, only of {names}; use modern"
        )
    for recipe in of_model:
        if recipe.fits(layout):
            return recipe
    cuts = " or ".join(recipe.cut for recipe in of_model)
    raise ValueError(
        f"engine.recipe=published: {model.name} was published as {cuts}, not as layout {layout.name}; choose "
        "a layout of that kind or engine.recipe=modern"
    )
