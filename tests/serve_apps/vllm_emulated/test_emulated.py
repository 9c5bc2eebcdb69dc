"""serve_apps/vllm_emulated/gpu.py and platform_plugin.py: switch, costs, memory and steps of vLLM."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conf import load
from conf.specs.experiment import EmulatedEngine, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks, kv_bytes_per_token
from serve_apps.engine_model.cost.links import TransferSeconds
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.vllm_emulated.gpu import EmulatedGpu, StepPart, Steps, batch, emulated
from serve_apps.vllm_emulated.platform_plugin import (
    CONNECTORS,
    ENVIRONMENT,
    GPU_BYTES,
    PLATFORM,
    SWITCH,
    refuse_gpu_node,
    register,
)
from serve_apps.vllm_recipes.recipes import Recipe

SPECS = load(["engine=vllm_emulated", "layout=dp1_tp8_ep8"])
ON = {SWITCH: "1"}


def gpu(engine: EmulatedEngine | None = None, **model: Any) -> EmulatedGpu:
    return EmulatedGpu.from_specs(
        engine or EmulatedEngine(), replace(SPECS.model, **model), SPECS.hardware, SPECS.layout
    )


def scheduled(
    new: list[tuple[str, int, int, list[int] | None]] = [],  # noqa: B006
    cached: list[tuple[str, int, int]] = [],  # noqa: B006
    tokens: dict[str, int] | None = None,
    finished: tuple[str, ...] = (),
) -> Any:
    """A SchedulerOutput as far as it is read.

    `new` are (id, prompt, computed, prefill ids), `cached` (id, computed, outputs).
    """
    return SimpleNamespace(
        finished_req_ids=set(finished),
        num_scheduled_tokens=tokens or {},
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name,
                prompt_token_ids=[1] * prompt,
                num_computed_tokens=computed,
                prefill_token_ids=ids,
            )
            for name, prompt, computed, ids in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, *_ in cached],
            num_computed_tokens=[computed for _, computed, _ in cached],
            num_output_tokens=[outputs for *_, outputs in cached],
        ),
    )


def test_the_platform_is_there_only_where_it_is_asked_for_and_no_gpu_is(tmp_path: Path) -> None:
    nowhere, device = str(tmp_path / "none"), tmp_path / "kfd"
    assert register({}, [nowhere]) is None
    assert register({SWITCH: "0"}, [nowhere]) is None
    assert register(ON, [nowhere]) == PLATFORM
    device.touch()
    assert register(ON, [nowhere, str(device)]) is None
    with pytest.raises(ValueError, match=f"refused where a GPU is visible .*{SWITCH}") as refused:
        refuse_gpu_node([nowhere, str(device)])
    assert "\n" not in str(refused.value)


def test_what_vllm_loads_in_every_process_is_light() -> None:
    code = "import sys, serve_apps.vllm_emulated.platform_plugin as at; at.register(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"torch", "vllm", "conf", "numpy", "ray", "pydantic"} & set(loaded.split())


def test_a_gpu_survives_the_way_through_vllms_configuration() -> None:
    there = gpu()
    text = json.dumps(there.written(), allow_nan=False)
    assert EmulatedGpu.read(json.loads(text)) == there
    with pytest.raises(ValueError, match="additional-config"):
        EmulatedGpu.read({})


def test_costs_and_memory_are_those_of_the_simulated_engine() -> None:
    simulated, there = SimulatedEngine(), gpu()
    parts = SPECS.model, SPECS.hardware, SPECS.layout
    assert there.costs == roofline(*parts)
    block_bytes = simulated.block_size * kv_bytes_per_token(SPECS.model, SPECS.layout.tensor_parallel)
    kv_bytes = there.kv_bytes(simulated.gpu_memory_utilization)
    assert kv_bytes // block_bytes == kv_blocks(simulated, *parts)
    assert there.synchronous().costs == replace(there.costs, host_sequence_s=0.0)
    with pytest.raises(ValueError, match="leave no KV"):
        there.kv_bytes(0.1)


def test_the_front_end_is_left_out_for_vllms_own_is_real() -> None:
    times = SPECS.model.step_time
    slow = {
        name: replace(getattr(times, name), value=999.0, low=None, high=None)
        for name in ("front_end_ms", "front_end_latency_ms")
    }
    assert gpu(step_time=replace(times, **slow)).costs == gpu().costs


def test_a_recipe_stays_what_it_is_but_for_the_switch() -> None:
    recipe = Recipe({"max_num_seqs": 64}, {"VLLM_ROCM_USE_AITER": "1"}, ("a note",))
    there = emulated(recipe, EmulatedEngine(), SPECS.model, SPECS.hardware, SPECS.layout)
    assert there.args == {"max_num_seqs": 64, "additional_config": gpu().written()}
    assert (
        there.env == {**recipe.env, **ENVIRONMENT, GPU_BYTES: "274861129728"} and there.notes == recipe.notes
    )


def test_latent_attention_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"\(MLA\).*use engine=simulated"):
        gpu(kv_lora_rank=512)


def test_a_prompt_in_chunks_samples_with_its_last_one() -> None:
    steps = Steps()
    (first,) = steps.parts(scheduled(new=[("a", 100, 0, None)], tokens={"a": 60}))
    assert first == StepPart("a", computed=0, new=60, prompt=100, known=100)
    assert not first.samples and not first.decodes
    (last,) = steps.parts(scheduled(cached=[("a", 60, 0)], tokens={"a": 40}))
    assert last.samples and not last.decodes
    assert batch([first, last]) == Batch(
        prefill_tokens=100, context_tokens=60, attention_pairs=60 * 30 + 40 * (60 + 20), sequences=1
    )


def test_a_decoder_counts_outputs_that_are_still_computed() -> None:
    steps = Steps()
    steps.parts(scheduled(new=[("a", 100, 96, None)], tokens={"a": 4}))
    (decoder,) = steps.parts(scheduled(cached=[("a", 100, 1)], tokens={"a": 1}))
    assert decoder.decodes and decoder.samples
    assert batch([decoder]) == Batch(decode_tokens=1, context_tokens=100, sequences=1)


def test_the_last_token_of_a_prompt_that_was_received_is_as_one_decoded() -> None:
    steps = Steps()
    steps.received({"a"})
    (part,) = steps.parts(scheduled(new=[("a", 100, 99, None)], tokens={"a": 1}))
    assert part.samples and part.decodes
    assert batch([part]) == Batch(decode_tokens=1, context_tokens=99, sequences=1)


def test_a_recipe_of_a_split_layout_gets_our_connector_of_the_same_name_and_the_links_constants() -> None:
    words = ["layout=3p1d_tp2_ep2", "layout.tensor_parallel=4", "layout.prefill.per_node=2"]
    layout = load(words).layout
    decode, prefill = (
        Recipe({"kv_transfer_config": {"kv_connector": "MoRIIOConnector", "kv_role": role}}, {})
        for role in ("kv_consumer", "kv_producer")
    )
    recipe = replace(decode, prefill=prefill)
    there = emulated(recipe, EmulatedEngine(), SPECS.model, SPECS.hardware, layout)
    assert there.prefill is not None
    for before, after, width in ((decode, there, 4), (prefill, there.prefill, 2)):
        config = {**before.args["kv_transfer_config"], "kv_connector_module_path": CONNECTORS}
        assert after.args["kv_transfer_config"] == config
        seen = EmulatedGpu.read(json.loads(json.dumps(after.args["additional_config"])))
        assert seen.transfer == TransferSeconds.of(SPECS.model, layout) and seen.tensor_parallel == width


def test_the_limits_of_a_layout_come_before_the_engines_as_in_the_simulated_engine() -> None:
    layout = replace(SPECS.layout, max_num_batched_tokens=4096)
    recipe = Recipe({"max_num_batched_tokens": 8192, "max_num_seqs": 64}, {})
    there = emulated(recipe, EmulatedEngine(), SPECS.model, SPECS.hardware, layout)
    assert (there.args["max_num_batched_tokens"], there.args["max_num_seqs"]) == (4096, 64)


@pytest.mark.parametrize("runner", ["V1", "V2"])
def test_a_preempted_request_computes_its_outputs_again(runner: str) -> None:
    steps = Steps()
    steps.parts(scheduled(new=[("a", 100, 0, None)], tokens={"a": 100}))
    again = (
        scheduled(cached=[("a", 48, 10)], tokens={"a": 62})
        if runner == "V1"
        else scheduled(new=[("a", 100, 48, [1] * 110)], tokens={"a": 62})
    )
    (resumed,) = steps.parts(again)
    assert resumed == StepPart("a", computed=48, new=62, prompt=100, known=110)
    assert resumed.samples and not resumed.decodes
    steps.parts(scheduled(finished=("a",)))
    with pytest.raises(KeyError):
        steps.parts(scheduled(cached=[("a", 110, 11)], tokens={"a": 1}))
