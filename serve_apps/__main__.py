"""Print the commands of real vLLM without starting it, or write a tiny model for it.

examples:
  python -m serve_apps render                                            today's recipe, TP8/EP8
  python -m serve_apps render layout=dp2_tp4_ep4 vllm_version=0.33.0     two TP4 servers of a node
  python -m serve_apps render layout=1p1d_tp4_ep4                        both sides and the proxy
  python -m serve_apps render workload=chat_sessions routing=consistent_hash    its router in the file
  python -m serve_apps render engine.recipe=published layout=dp2_tp4_ep4  as Character.ai printed it
  python -m serve_apps render model=deepseek_v32_fp8 layout=dp1_tp8      the models of arXiv 2603.10031
  python -m serve_apps render engine.profile=low_latency engine.args.enable_prefix_caching=false
  python -m serve_apps render engine.args.block_size=null --json         null removes a flag of the recipe
  python -m serve_apps render --calibrate layout=dp2_tp4_ep4             times that calibrate the model
  python -m serve_apps model FOLDER model=tiny_qwen3_moe                 random weights for engine=vllm_cpu
"""

# The composition root of this package: the only file that may import other packages.

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.ray_session.own_machine import serve_environment
from conf import ConfigError, load
from conf.io import terminal
from conf.io.one_line import OneLineParser
from conf.specs.experiment import VllmEngine
from loadgen.traffic import trace
from loadgen.traffic.traffic import Traffic
from serve_apps.vllm_emulated.platform_plugin import installed_vllm
from serve_apps.vllm_engine.config_file import VllmService, environment
from serve_apps.vllm_engine.rendering import Rendering, calibration_text, render
from serve_apps.vllm_recipes import recipes, vllm_flags
from serve_apps.vllm_recipes.model_folder import write_folder

EXIT_OK, EXIT_USAGE = 0, 2
VERSION = "vllm_version"
MACHINE = ("model", "hardware", "layout")


def main(argv: Sequence[str] | None = None) -> int:
    """Act on the words and return the exit code: 0, or 2 for wrong usage or a contradiction."""
    arguments = _parser().parse_intermixed_args(argv)

    def act() -> int:
        terminal.data(_answer(arguments))
        return EXIT_OK

    return terminal.exit_code(act, (ValueError, EXIT_USAGE))  # a ConfigError is one


def _answer(arguments: argparse.Namespace) -> str:
    if arguments.calibrate:
        if arguments.verb != "render" or arguments.json:
            raise ConfigError("--calibrate belongs to render, without --json; leave it out")
        machine = [word for word in arguments.words if word.partition("=")[0].partition(".")[0] in MACHINE]
        return calibration_text(_specs(arguments.words), machine)
    if arguments.verb == "render":
        rendering = _render(arguments.words)
        return json.dumps(rendering.tree(), indent=2) if arguments.json else rendering.text()
    if arguments.json:
        raise ConfigError("--json belongs to render; leave it out")
    return str(_write_model(arguments.words))


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m serve_apps",
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="The words are those of python -m loadgen, with engine=vllm; vllm_version=X is by default "
        "that of\na published recipe, else the installed one, else the newest one known.\n"
        "exit codes: 0 printed or written; 2 wrong usage, or a contradiction, in one line with the remedy",
    )
    parser.add_argument("verb", choices=("render", "model"), help="render: print; model: write a folder")
    parser.add_argument("words", nargs="*", metavar="key=value", help="choices and values, in any order")
    calibrate = "render: the command whose times calibrate the engine model (vLLM 0.33 on)"
    parser.add_argument("--calibrate", action="store_true", help=calibrate)
    parser.add_argument("--json", action="store_true", help="render: one JSON document")
    return parser


def _specs(words: Sequence[str]) -> VllmService:
    """The deployment that the words describe, on any number of nodes, for nothing is started.

    Its version is that of the words, else of the published recipe, else the installed or newest known one.
    """
    renamed = [f"engine.{word}" if word.startswith(f"{VERSION}=") else word for word in words]
    experiment = load(_with_defaults(renamed, "engine=vllm", "cluster.session=fake"))
    engine = experiment.engine
    if not isinstance(engine, VllmEngine):
        raise ConfigError(f"engine={engine.kind} is not vLLM; choose engine=vllm or leave it out")
    if engine.recipe == "published" and not engine.vllm_version:
        return VllmService(experiment, recipes.published(experiment.model, experiment.layout).version)
    version = engine.vllm_version or installed_vllm() or vllm_flags.text(vllm_flags.NEWEST)
    return VllmService(experiment, version)


def _with_defaults(words: Sequence[str], *defaults: str) -> list[str]:
    """The words, and those of `defaults` whose key none of them sets."""
    keys = {word.partition("=")[0] for word in words}
    return [*words, *(word for word in defaults if word.partition("=")[0] not in keys)]


def _render(words: Sequence[str]) -> Rendering:
    specs = _specs(words)
    experiment, engine = specs.experiment, specs.engine
    rendering, by_hand = render(specs), specs.recipe(by_hand=True)
    serve = serve_environment(experiment.routing) | environment(engine, experiment.routing)
    if engine.kind != "vllm":  # as in a sweep, all processes need the variables of a machine without a GPU
        serve |= by_hand.env
    workload = trace.resolve(experiment.workload)
    lengths = Traffic(workload).longest_request_tokens, workload.input_tokens.mean
    notes = (*rendering.notes, *recipes.check_request(by_hand, experiment.model, *lengths))
    return replace(rendering, notes=notes, environment=serve if rendering.application else {})


def _write_model(words: Sequence[str]) -> Path:
    folders = [word for word in words if "=" not in word]
    if len(folders) != 1:
        raise ConfigError("model takes one folder: python -m serve_apps model FOLDER model=tiny_qwen3_moe")
    chosen = [word for word in words if "=" in word]
    experiment = load(_with_defaults(chosen, "model=tiny_qwen3_moe", "layout=dp1_tp1"))
    try:
        return write_folder(experiment.model, Path(folders[0]), weights=True, seed=experiment.seed)
    except OSError as error:
        raise ConfigError(f"cannot write {folders[0]}: {error.strerror}; choose another folder") from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed; it comes with vLLM (README.md)") from error


if __name__ == "__main__":
    sys.exit(main())
