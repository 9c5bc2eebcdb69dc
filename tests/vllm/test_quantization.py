"""`serve_apps.vllm_recipes`: which quantisation vLLM takes with which checkpoint, by its own configuration.

On emulated GPUs, for a CPU refuses kinds that an MI325X serves.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import vllm
import yaml

from conf import load
from serve_apps.vllm_emulated.platform_plugin import ENVIRONMENT
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.support.words.recipe_words import resolve
from tests.vllm.running import said

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
CHECK = """
import json, sys
from vllm import EngineArgs
root, (checkpoints, cases) = sys.argv[1], json.loads(sys.argv[2])
said = {}
for checkpoint in checkpoints:
    said[checkpoint] = {}
    for name, args in cases.items():
        try:
            EngineArgs(model=f"{root}/{checkpoint}", max_model_len=4096, **args).create_model_config()
            said[checkpoint][name] = "accepted"
        except ValueError as error:
            said[checkpoint][name] = str(error)
print("SAID" + json.dumps(said))
"""

CHECKPOINTS = yaml.safe_load((Path(__file__).parents[1] / "data" / "quantization_configs.yaml").read_text())
LAYOUTS = {
    "llama31_405b_fp8": "layout=dp1_tp8",
    "qwen3_235b_a22b_fp8": "layout=dp1_tp8_ep8",
    "kimi_k25_int4": "layout=dp1_tp4",
}
ALLOWED = {"allow_deprecated_quantization": True}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {"allow_deprecated_quantization": False},
    "allowed": ALLOWED,
    "fp8": {**ALLOWED, "quantization": "fp8"},
    "per channel": {**ALLOWED, "quantization": "fp8_per_channel"},
}


def accepted(model: str, args: dict[str, Any]) -> bool:
    words = [f"engine.args.{name}={json.dumps(value)}" for name, value in args.items()]
    try:
        resolve([f"model={model}", LAYOUTS[model], *words], vllm.__version__)
    except ValueError as error:
        assert "quantization" in str(error)
        return False
    return True


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """What vLLM says to every case with every checkpoint, in one process, for its import takes long."""
    root = tmp_path_factory.mktemp("checkpoints")
    for model, quantization in CHECKPOINTS.items():
        folder = write_folder(load(["model=llama31_405b_fp8"]).model, root / model)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantization}))
    asked = json.dumps([list(CHECKPOINTS), CASES])
    result: dict[str, dict[str, str]] = said(["-c", CHECK, str(root), asked], ENVIRONMENT, root)
    return result


@pytest.mark.parametrize("model", CHECKPOINTS)
def test_what_is_refused_is_what_vllm_stops_at(model: str, answers: dict[str, dict[str, str]]) -> None:
    taken = {name: answer == "accepted" for name, answer in answers[model].items()}
    ours = {name: accepted(model, args) for name, args in CASES.items()}
    assert taken == ours, answers[model]
