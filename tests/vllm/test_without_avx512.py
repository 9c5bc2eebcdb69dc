"""`serve_apps.vllm_emulated` on a CPU without AVX-512: processes that may not load what needs it."""

import json
import os
from pathlib import Path

import pytest

from conf import load
from conf.specs.experiment import EmulatedEngine
from serve_apps.vllm_emulated.gpu import EmulatedGpu
from serve_apps.vllm_emulated.platform_plugin import ENVIRONMENT
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.vllm.running import said

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

OLD_CPU = """
import os, sys

class OldCpu:
    def find_spec(self, name, path=None, target=None):
        if name == "vllm":
            import torch
            torch.cpu._is_avx512_supported = torch.cpu._is_avx512_bf16_supported = lambda: False
        if name in ("vllm._C", "vllm._C_AVX512"):
            os.write(2, b"Illegal instruction: " + name.encode())
            os._exit(132)

sys.meta_path.insert(0, OldCpu())
"""
"""The module `sitecustomize`: every Python below the test begins with it, vLLM's own processes too."""

KERNELS = """
import json, re
from pathlib import Path
import vllm._custom_ops
from vllm.platforms import current_platform
mapped = set(re.findall(r"/vllm/(_C\\w*)\\.", Path("/proc/self/maps").read_text()))
print("SAID" + json.dumps([current_platform.device_name, sorted(mapped)]))
"""
GENERATE = """
import json, sys
from vllm import LLM, SamplingParams
folder, gpu = sys.argv[1:]
engine = LLM(folder, tensor_parallel_size=8, enable_expert_parallel=True, max_model_len=4096,
             num_gpu_blocks_override=1000, additional_config=json.loads(gpu))
(answer,) = engine.generate({"prompt_token_ids": [1, 2, 3]}, SamplingParams(max_tokens=4, ignore_eos=True))
print("SAID" + json.dumps(len(answer.outputs[0].token_ids)))
"""


@pytest.fixture(scope="module")
def old_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old_cpu")
    (folder / "sitecustomize.py").write_text(OLD_CPU)
    return folder


def said_there(old_cpu: Path, script: str, environment: dict[str, str], *words: str) -> object:
    """The JSON that the script prints after SAID on such a CPU."""
    here = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(old_cpu), *([here] if here else [])])
    return said(["-c", script, *words], {**environment, "PYTHONPATH": path}, old_cpu)


@pytest.mark.parametrize("platform", ["emulated", "cpu"])
def test_the_kernels_are_those_of_such_a_cpu(platform: str, old_cpu: Path) -> None:
    environment = ENVIRONMENT if platform == "emulated" else {"HF_HUB_OFFLINE": "1"}
    assert said_there(old_cpu, KERNELS, environment) == [platform, ["_C_AVX2"]]


def test_an_emulated_engine_answers(old_cpu: Path, tmp_path: Path) -> None:
    """The engine core has a process of its own, which begins like this one."""
    specs = load(["engine=vllm_emulated", "layout=dp1_tp8_ep8"])
    gpu = EmulatedGpu.from_specs(EmulatedEngine(), specs.model, specs.hardware, specs.layout)
    folder = write_folder(specs.model, tmp_path)
    assert said_there(old_cpu, GENERATE, ENVIRONMENT, str(folder), json.dumps(gpu.written())) == 4
