"""Commands and Ray configuration of an experiment on a real vLLM, as text: each replica of a node as a person
would start it, Ray Serve's file that starts the same engines on all nodes, and the bench for calibration."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from conf.io import bounded_yaml
from conf.io.one_line import one_line
from conf.specs.experiment import Experiment, Layout, Routing, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks
from serve_apps.vllm_engine import config_file
from serve_apps.vllm_engine.config_file import VllmService, near, own_caches
from serve_apps.vllm_recipes import kv_transfer
from serve_apps.vllm_recipes.kv_transfer import TRANSFER, Side
from serve_apps.vllm_recipes.recipes import Recipe, command, flags, module_command
from serve_apps.vllm_recipes.rules import EXTRA

LOOPBACK = "127.0.0.1"
FIRST_PORT = 8000
KEEP_ALIVE_S = 600
"""Serve's 5 s would close a connection just as HAProxy sends on it."""
OUR_NAME = re.compile(r"serve_apps\.[\w.]+:?\w+")
SERVER_MODULE = ("python", "-m", "vllm.entrypoints.openai.api_server")
SEVERAL_NODES = (
    "by hand on several nodes: one proxy for all engines; give it and the engines the nodes' addresses "
    "instead of 127.0.0.1 (--host, proxy_ip, VLLM_NIXL_SIDE_CHANNEL_HOST)"
)
PROXY = "the proxy for clients, from vLLM's source tree; with Ray Serve decode replicas do its work"
BY_CLIENT = (
    "routing={}: the load generator chooses the replica, and nothing that is deployed does. HAProxy serves "
    "this file in turn; measure and render routing=leastconn for one address, or let clients choose as the "
    "load generator does"
)
KV_BOOKS = (
    f"routing=kv_aware needs {config_file.KV_PACKAGE} on all nodes: without it every request is answered 503"
)
NEEDS_PACKAGE = (
    "the Ray Serve config names {}: install this package on all nodes; ray 2.60 has nothing that deploys the "
    "same"
)


@dataclass(frozen=True, slots=True)
class Process:
    """One replica started by hand: its devices on the node, its environment and its words.

    `side` is that of a split layout, empty for an engine that computes prompts and answers.
    """

    gpus: tuple[int, ...]
    port: int
    env: dict[str, str]
    command: tuple[str, ...]
    side: str = ""

    @property
    def title(self) -> str:
        return f"GPUs {', '.join(map(str, self.gpus))}" if self.gpus else "one CPU device"

    def shell(self) -> str:
        """The command for a shell, one flag a line; $HOME is left to it."""
        assigned = [f"{name}={_quoted(value)}" for name, value in self.env.items()]
        return " \\\n  ".join([*assigned, *flag_lines(self.command)])


@dataclass(frozen=True, slots=True)
class Rendering:
    """`application` is a Ray Serve config file, or None with the reason in `notes`.

    `environment` are the variables that Serve's processes need for it. `proxy` are the words that start what
    joins the engines of a split layout, empty for any other.
    """

    version: str
    processes: tuple[Process, ...]
    application: dict[str, Any] | None
    notes: tuple[str, ...]
    proxy: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def tree(self) -> dict[str, Any]:
        """Plain data with the names of the text."""
        return {
            "vllm_version": self.version,
            "replicas_of_a_node": [asdict(process) for process in self.processes],
            "proxy_by_hand": list(self.proxy) or None,
            "ray_serve": self.application,
            "ray_serve_environment": self.environment,
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """Commands and configuration, with the notes as comments."""
        parts = [f"# vLLM {self.version}", *(f"# note: {one_line(note)}" for note in self.notes)]
        for number, process in enumerate(self.processes, 1):
            does = f" ({process.side})" if process.side else ""
            parts.append(f"\n# replica {number} of {len(self.processes)} on each node{does}: {process.title}")
            parts.append(process.shell())
        if self.proxy:
            parts.append(f"\n# {PROXY}")
            parts.append(shlex.join(self.proxy))
        if self.application is not None:
            parts.append("\n# on all nodes before ray start; they decide, too, who chooses a replica")
            parts += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
            parts.append("\n# the same engines on all nodes by Ray Serve: serve deploy FILE")
            parts.append(yaml.safe_dump(self.application, sort_keys=False).rstrip())
        return "\n".join(parts)


def devices_variable(experiment: Experiment) -> str:
    """The variable that limits which GPUs a process sees."""
    return "HIP_VISIBLE_DEVICES" if "gfx" in experiment.hardware.arch else "CUDA_VISIBLE_DEVICES"


def render(service: VllmService) -> Rendering:
    """The commands and the configuration. Raises ValueError for a contradiction, as a deployment would."""
    application, notes = _application(service)
    by_hand, layout = service.recipe(by_hand=True), service.experiment.layout
    sides: list[tuple[Side | None, Recipe, Layout]] = [(None, by_hand, layout)]
    if by_hand.prefill is not None and layout.prefill_side is not None:
        sides = [("prefill", by_hand.prefill, layout.prefill_side), ("decode", by_hand, layout.decode_side)]
        if service.experiment.cluster.nodes > 1:
            notes = (*notes, SEVERAL_NODES)
    started: list[Process] = []
    for side, recipe, engines in sides:
        for index in range(engines.replicas_per_node):
            first_gpu, port = sum(len(process.gpus) for process in started), FIRST_PORT + len(started)
            started.append(_process(service, recipe, engines, side, index, first_gpu, port))
    ports = {side: [process.port for process in started if process.side == side] for side, *_ in sides}
    proxy = kv_transfer.proxy(layout, ports["prefill"], ports["decode"]) if len(sides) > 1 else []
    all_notes = tuple(dict.fromkeys((*by_hand.notes, *notes)))
    return Rendering(service.version, tuple(started), application, all_notes, tuple(proxy))


def _application(service: VllmService) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """The Serve config and notes; None for what only vLLM's own server can run."""
    engine = service.engine
    if engine.server == "process":
        service.recipe()  # a deployment refuses what a person may still start
        return None, (
            "no Ray Serve config: with engine.server=process a deployment of ours runs the commands, without "
            "numactl and on devices and ports that are free",
        )
    try:
        recipe = service.recipe()
    except ValueError as error:
        if engine.recipe != "published" or "distributed_executor_backend" in engine.args:
            raise
        return None, (f"no Ray Serve config: {error}",)
    routing = service.experiment.routing
    tree = config_file.application(routing, config_file.arguments(service.experiment, recipe))
    # As in a sweep there is one front, on the head node, so that one balancer sees all requests.
    http = {"host": LOOPBACK, "keep_alive_timeout_s": KEEP_ALIVE_S}
    application = {"proxy_location": "HeadOnly", "http_options": http, "applications": [tree]}
    return application, (*recipe.notes, *_routing_notes(routing, tree))


def _routing_notes(routing: Routing, application: dict[str, Any]) -> tuple[str, ...]:
    """What of the routing the file cannot have by itself."""
    names = sorted(set(OUR_NAME.findall(yaml.safe_dump(application))))
    notes = [NEEDS_PACKAGE.format(" and ".join(names))] if names else []
    if routing.data_path == "direct":
        notes.append(BY_CLIENT.format(routing.policy))
    if routing.policy == "kv_aware":
        notes.append(KV_BOOKS)
    return tuple(notes)


def _process(
    service: VllmService,
    recipe: Recipe,
    layout: Layout,
    side: Side | None,
    index: int,
    first_gpu: int,
    port: int,
) -> Process:
    """Engine `index` of its side on a node, with its devices, port, caches and NUMA node."""
    engine = service.engine
    if side is not None:
        gpus = recipe.args["tensor_parallel_size"]
        env, extra = kv_transfer.by_hand(service.experiment.layout, side, index, gpus, port)
        config = kv_transfer.over(recipe.args[TRANSFER], {EXTRA: extra} if extra else {})
        recipe = replace(recipe, args={**recipe.args, TRANSFER: config}, env={**recipe.env, **env})
    address = ["--host", LOOPBACK, "--port", str(port)]
    if engine.kind != "vllm":  # CPU builds bring no `vllm` command that starts
        words = [
            *SERVER_MODULE,
            *module_command(recipe, service.experiment.model, engine.model_path),
            *address,
        ]
        return Process((), port, dict(recipe.env), tuple(words), side or "")
    devices = tuple(range(first_gpu, first_gpu + layout.gpus_per_replica))
    own = {devices_variable(service.experiment): ",".join(map(str, devices))}
    if layout.replicas_per_node > 1 or side:
        own |= own_caches(devices, "$HOME")
    words = [*near(devices, service.experiment.cluster.gpus_per_node), "vllm", "serve"]
    words += [*command(recipe, service.experiment.model, engine.model_path), *address]
    return Process(devices, port, own | recipe.env, tuple(words), side or "")


def _quoted(value: str) -> str:
    home, rest = "$HOME/", value.removeprefix("$HOME/")
    return f'"$HOME"/{shlex.quote(rest)}' if value.startswith(home) else shlex.quote(value)


def flag_lines(words: Sequence[str]) -> list[str]:
    """The words with every flag of vLLM's and its values on a line; flags before the server stay with it."""
    lines: list[list[str]] = [[]]
    seen_server = False
    for word in words:
        if word.startswith("--") and seen_server:
            lines.append([])
        seen_server = seen_server or word in ("serve", "-m", "bench")
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines if line]


LEAST_VERSION = (0, 33)
"""The first one with `vllm bench forward`."""
OUTPUT = "forward.json"
LARGEST_STEP = 8192
"""Tokens of a step where the recipe leaves them to vLLM (our choice)."""
CASES = Path(__file__).with_name("forward_cases.yaml")
_PART = re.compile(r"(?:(?P<count>\d+)\*)?(?P<new>\d+)(?:@(?P<total>\d+)c?)?")
NOT_OF_A_BENCH = ("enable_prefix_caching", "distributed_executor_backend", "enable_prompt_tokens_details")
"""Arguments that the bench sets itself or does not have."""


def fits(case: str, longest: int, most_tokens: int, room: int) -> bool:
    """True if requests of a case have at most `longest` tokens, its step `most_tokens`, and its KV `room`."""
    step, held = 0, 0
    for part in _PART.finditer(case.partition("=")[2]):
        count, new = int(part["count"] or 1), int(part["new"])
        total = int(part["total"] or new)
        if total > longest:
            return False
        step, held = step + count * new, held + count * total
    return step <= most_tokens and held <= room


def calibration_text(service: VllmService, machine: Sequence[str]) -> str:
    """The command for the first engine of a node, then what to do with its file.

    `machine` are the words that chose model, hardware and layout. Raises ValueError for a version or layout
    without such times, and for weights that do not fit.
    """
    version, experiment = service.version, service.experiment
    layout = experiment.layout
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if number < LEAST_VERSION:
        raise ValueError(
            f"vLLM {version} has no bench forward; it is there from 0.33 on: vllm_version=0.33.0, or measure "
            "with python -m loadgen recipe"
        )
    if layout.prefill is not None or layout.data_parallel > 1:
        raise ValueError(
            f"layout {layout.name}: the bench times one engine without ranks; render --calibrate one with "
            "the same tensor_parallel"
        )
    recipe = service.recipe(by_hand=True)
    longest = int(recipe.args.get("max_model_len", experiment.model.max_context_tokens))
    most_tokens = int(recipe.args.get("max_num_batched_tokens", LARGEST_STEP))
    spec = SimulatedEngine("simulated")
    room = kv_blocks(spec, experiment.model, experiment.hardware, layout) * spec.block_size
    kinds, batches = [], []
    for kind, row in bounded_yaml.read(CASES.read_text()).items():
        if fitting := [case for case in row["cases"] if fits(case, longest, most_tokens, room)]:
            kinds.append(f"#   {kind}: {row['why']}")
            batches += fitting
    kept = {name: value for name, value in recipe.args.items() if name not in NOT_OF_A_BENCH}
    gpus = tuple(range(layout.tensor_parallel))
    starts = ["vllm"]
    if len(gpus) > 1:
        starts = ["torchrun", f"--nproc-per-node={len(gpus)}", "-m", "vllm.entrypoints.cli.main"]
    command = (
        *starts,
        *("bench", "forward", "--model", service.engine.model_path or experiment.model.served_name),
        *flags(Recipe(kept, {})),
        *("--kv-len-jitter", "0", "--output-json", OUTPUT),
        *(word for batch in batches for word in ("--case", batch)),
    )
    devices = {devices_variable(experiment): ",".join(map(str, gpus))}
    bench = Process(gpus, 0, devices | recipe.env, command)
    return "\n".join(
        [
            f"# vLLM {version}, dummy weights: times of {len(batches)} batches on one engine, some minutes",
            *kinds,
            bench.shell(),
            "",
            "# then, on any machine: constants for predict and for engine=simulated",
            f"python -m analysis calibrate --forward {shlex.join([OUTPUT, *machine])} --out node.yaml",
        ]
    )
