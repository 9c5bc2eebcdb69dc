"""Commands and Ray configuration of an experiment on a real vLLM, as text; starts nothing.

One command line for each replica of a node, as a person would start it by hand, and the configuration with
which Ray Serve starts the same engines on all nodes.
"""

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml

from conf.io.one_line import one_line
from conf.specs.experiment import Cluster, Hardware, Layout, Model, VllmEngine
from serve_apps.vllm_emulated.gpu import emulated
from serve_apps.vllm_engine.node_share import near, own_caches
from serve_apps.vllm_recipes.recipes import Recipe, command, llm_config, module_command, resolve

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8000
SERVER_MODULE = ("python", "-m", "vllm.entrypoints.openai.api_server")
DIRECT_STREAMING = (
    "for Ray Serve set RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING=1 on all nodes "
    "before ray start: tokens then go straight from vLLM through HAProxy"
)


@dataclass(frozen=True, slots=True)
class Process:
    """One replica started by hand: its devices on the node, its environment and its words."""

    gpus: tuple[int, ...]
    port: int
    env: dict[str, str]
    command: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"GPUs {', '.join(map(str, self.gpus))}" if self.gpus else "one CPU device"

    def shell(self) -> str:
        """The command for a shell, one flag a line; $HOME is left to it."""
        assigned = [f"{name}={_quoted(value)}" for name, value in self.env.items()]
        return " \\\n  ".join([*assigned, *_lines(self.command)])


@dataclass(frozen=True, slots=True)
class Rendering:
    """`application` is a Ray Serve config file, or None with the reason in `notes`."""

    version: str
    processes: tuple[Process, ...]
    application: dict[str, Any] | None
    notes: tuple[str, ...]

    def tree(self) -> dict[str, Any]:
        """Plain data with the names of the text."""
        return {
            "vllm_version": self.version,
            "replicas_of_a_node": [asdict(process) for process in self.processes],
            "ray_serve": self.application,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Commands and configuration, with the notes as comments."""
        parts = [f"# vLLM {self.version}", *(f"# note: {one_line(note)}" for note in self.notes)]
        for number, process in enumerate(self.processes, 1):
            parts.append(f"\n# replica {number} of {len(self.processes)} on each node: {process.title}")
            parts.append(process.shell())
        if self.application is not None:
            parts.append("\n# the same engines on all nodes by Ray Serve: serve deploy FILE")
            parts.append(yaml.safe_dump(self.application, sort_keys=False).rstrip())
        return "\n".join(parts)


@dataclass(frozen=True, slots=True)
class RenderingInput:
    """The specs that a deployment of a real vLLM depends on, and its version.

    `bundles` are the resources of one replica, as the placement of a run has them.
    """

    engine: VllmEngine
    model: Model
    layout: Layout
    cluster: Cluster
    hardware: Hardware
    bundles: tuple[dict[str, float], ...]
    version: str

    @property
    def devices(self) -> str:
        """The variable that says which GPUs a process sees."""
        return "HIP_VISIBLE_DEVICES" if "gfx" in self.hardware.arch else "CUDA_VISIBLE_DEVICES"

    def recipe(self, engine: VllmEngine) -> Recipe:
        found = resolve(engine, self.model, self.layout, self.version, self.hardware)
        return emulated(found, engine, self.model, self.hardware, self.layout)


def render(asked: RenderingInput) -> Rendering:
    """The commands and the configuration. Raises ValueError for a contradiction, as a deployment would."""
    by_hand = asked.recipe(replace(asked.engine, server="process"))
    application, notes = _application(asked)
    processes = tuple(_process(asked, by_hand, index) for index in range(asked.layout.replicas_per_node))
    return Rendering(asked.version, processes, application, tuple(dict.fromkeys((*by_hand.notes, *notes))))


def _application(asked: RenderingInput) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The Serve config and notes; None for what only vLLM's own server can run."""
    engine, layout = asked.engine, asked.layout
    if engine.server == "process":
        return None, (
            "no Ray Serve config: with engine.server=process a deployment of ours runs the commands, without "
            "numactl and on devices and ports that are free",
        )
    try:
        recipe = asked.recipe(engine)
    except ValueError as error:
        if engine.recipe != "published" or "distributed_executor_backend" in engine.args:
            raise
        return None, (f"no Ray Serve config: {error}",)
    replicas = asked.cluster.nodes * layout.replicas_per_node
    config = llm_config(engine, asked.model, layout, recipe, replicas, asked.bundles)
    serve_app = {
        "name": "vllm",
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [config]},
    }
    application = {"http_options": {"host": LOOPBACK}, "applications": [serve_app]}
    return application, (*recipe.notes, DIRECT_STREAMING)


def _process(asked: RenderingInput, recipe: Recipe, index: int) -> Process:
    """Replica `index` of a node: own devices, port and caches, and the memory beside its devices."""
    engine, layout = asked.engine, asked.layout
    port = FIRST_PORT + index
    address = ["--host", LOOPBACK, "--port", str(port)]
    if engine.kind != "vllm":  # CPU builds bring no `vllm` command that starts
        words = [*SERVER_MODULE, *module_command(recipe, asked.model, engine.model_path), *address]
        return Process((), port, dict(recipe.env), tuple(words))
    tp = layout.tensor_parallel
    devices = tuple(range(index * tp, (index + 1) * tp))
    own = {asked.devices: ",".join(map(str, devices))}
    if layout.replicas_per_node > 1:
        own |= own_caches(devices, "$HOME")
    words = [*near(devices, asked.cluster.gpus_per_node), "vllm", "serve"]
    words += [*command(recipe, asked.model, engine.model_path), *address]
    return Process(devices, port, own | recipe.env, tuple(words))


def _quoted(value: str) -> str:
    home, rest = "$HOME/", value.removeprefix("$HOME/")
    return f'"$HOME"/{shlex.quote(rest)}' if value.startswith(home) else shlex.quote(value)


def _lines(words: Sequence[str]) -> list[str]:
    """The words with every flag of vLLM's and its values on a line."""
    lines: list[list[str]] = [[]]
    seen_server = False
    for word in words:
        if word.startswith("--") and seen_server:
            lines.append([])
        seen_server = seen_server or word in ("serve", "-m")
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]
