"""serve_apps/vllm_emulated/gpu.py and platform_plugin.py: switch, costs, memory and steps of vLLM."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from conf import load
from conf.constants import replaced
from conf.specs.experiment import EmulatedEngine, SimulatedEngine
from serve_apps.engine_model.cost.architecture import kv_blocks, kv_bytes_per_token
from serve_apps.engine_model.cost.links import KvLink, TransferSeconds
from serve_apps.engine_model.cost.step_time import Batch, roofline
from serve_apps.vllm_emulated.gpu import EmulatedGpu, StepPart, Steps, batch, emulated
from serve_apps.vllm_emulated.kv_transfer import (
    COMPUTED,
    HOLD_S,
    MOST_EARLY,
    RELEASE,
    Notice,
    Order,
    Peer,
    SideChannel,
    Transfers,
    addressed,
    parsed,
)
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
from tests.support.machine.patience import until

SPECS = load(["engine=vllm_emulated", "layout=dp1_tp8_ep8"])
ON = {SWITCH: "1"}


def gpu(engine: EmulatedEngine | None = None, **model: Any) -> EmulatedGpu:
    return EmulatedGpu.from_specs(
        engine or EmulatedEngine(), replace(SPECS.model, **model), SPECS.hardware, SPECS.layout
    )


def scheduled(
    tokens: int = 0,
    new: tuple[Any, ...] = (),
    cached: tuple[int, ...] = (),
    finished: tuple[str, ...] = (),
) -> Any:
    """A SchedulerOutput as far as it is read, with so many tokens of the one request `a`.

    `new` are its prompt, computed tokens and prefill ids, `cached` its computed tokens and outputs.
    """
    first = [
        SimpleNamespace(
            req_id="a", prompt_token_ids=[1] * prompt, num_computed_tokens=computed, prefill_token_ids=ids
        )
        for prompt, computed, ids in ([new] if new else [])
    ]
    more = SimpleNamespace(
        req_ids=["a"] * bool(cached), num_computed_tokens=cached[:1], num_output_tokens=cached[1:]
    )
    return SimpleNamespace(
        finished_req_ids=set(finished),
        num_scheduled_tokens={"a": tokens} if tokens else {},
        scheduled_new_reqs=first,
        scheduled_cached_reqs=more,
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
    assert there.synchronous().costs == there.costs._replace(host_sequence_s=0.0)
    with pytest.raises(ValueError, match="leave no KV"):
        there.kv_bytes(0.1)


def test_the_front_end_is_left_out_for_vllms_own_is_real() -> None:
    front_end = "model.step_time.front_end_ms", "model.step_time.front_end_latency_ms"
    slow = replaced(SPECS, dict.fromkeys(front_end, 999.0)).model
    assert gpu(step_time=slow.step_time).costs == gpu().costs


def test_a_recipe_stays_what_it_is_but_for_the_switch_and_a_limit_of_the_layout() -> None:
    args = {"max_num_batched_tokens": 8192, "max_num_seqs": 64}
    recipe = Recipe(args, {"VLLM_ROCM_USE_AITER": "1"}, ("a note",))
    layout = replace(SPECS.layout, max_num_batched_tokens=4096)
    there = emulated(recipe, EmulatedEngine(), SPECS.model, SPECS.hardware, layout)
    assert there.args == {**args, "max_num_batched_tokens": 4096, "additional_config": gpu().written()}
    assert (
        there.env == {**recipe.env, **ENVIRONMENT, GPU_BYTES: "274861129728"} and there.notes == recipe.notes
    )


def test_latent_attention_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"\(MLA\).*use engine=simulated"):
        gpu(kv_lora_rank=512)


def test_a_prompt_in_chunks_samples_with_its_last_one_and_a_decoder_counts_outputs_still_computed() -> None:
    steps = Steps()
    (first,) = steps.parts(scheduled(60, new=(100, 0, None)))
    assert first == StepPart("a", computed=0, new=60, prompt=100, known=100)
    assert not first.samples and not first.decodes
    (last,) = steps.parts(scheduled(40, cached=(60, 0)))
    assert last.samples and not last.decodes
    assert batch([first, last]) == Batch(
        prefill_tokens=100, context_tokens=60, attention_pairs=60 * 30 + 40 * (60 + 20), sequences=1
    )
    (decoder,) = steps.parts(scheduled(1, cached=(100, 1)))
    assert decoder.decodes and decoder.samples
    assert batch([decoder]) == Batch(decode_tokens=1, context_tokens=100, sequences=1)


def test_the_last_token_of_a_prompt_that_was_received_is_as_one_decoded() -> None:
    steps = Steps()
    steps.received({"a"})
    (part,) = steps.parts(scheduled(1, new=(100, 99, None)))
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


@pytest.mark.parametrize("again", [{"cached": (48, 10)}, {"new": (100, 48, [1] * 110)}], ids=["V1", "V2"])
def test_a_preempted_request_computes_its_outputs_again(again: dict[str, Any]) -> None:
    steps = Steps()
    steps.parts(scheduled(100, new=(100, 0, None)))
    (resumed,) = steps.parts(scheduled(62, **again))
    assert resumed == StepPart("a", computed=48, new=62, prompt=100, known=110)
    assert resumed.samples and not resumed.decodes
    steps.parts(scheduled(finished=("a",)))
    with pytest.raises(KeyError):
        steps.parts(scheduled(1, cached=(110, 11)))


TRANSFER_SPECS = load(["engine=vllm_emulated", "layout=1p1d_tp4_ep4"])
SECONDS = TransferSeconds.of(TRANSFER_SPECS.model, TRANSFER_SPECS.layout)
TOKENS = 5600
PREFILL, DECODE = Peer("10.0.0.1", 61005), Peer("10.0.0.2", 62005)
NOTHING: tuple[set[str], set[str]] = (set(), set())


class Pair:
    """A prefill and a decode engine that hear each other at once."""

    def __init__(self, writes: bool = False) -> None:
        self.now_s = 100.0
        self.told: list[Notice] = []
        self.prefill = Transfers(SECONDS, writes, lambda _, notice: self._post(self.decode, notice))
        self.decode = Transfers(SECONDS, writes, lambda _, notice: self._post(self.prefill, notice))

    def _post(self, to: Transfers, notice: Notice) -> None:
        self.told.append(notice)
        to.hear(notice, self.now_s)

    def hold(self, name: str = "p") -> None:
        self.prefill.order([Order("hold", name, f"key-{name}")], self.now_s)

    def load(self, name: str = "d", key: str = "key-p", tokens: int = TOKENS) -> None:
        self.decode.order([Order("load", name, key, PREFILL, tokens)], self.now_s)


def end_s(start_s: float, tokens: int = TOKENS) -> float:
    return KvLink(SECONDS).end_s(*3 * (start_s,), tokens)


def test_a_prompt_that_is_read_arrives_when_the_link_says_and_releases_its_blocks() -> None:
    pair = Pair()
    pair.hold()
    pair.load()
    end = end_s(100.0)
    assert end - 100.0 == pytest.approx(SECONDS.work_s(TOKENS) + SECONDS.latency_s)
    assert pair.decode.finished(end - 1e-6) == pair.prefill.finished(end - 1e-6) == NOTHING
    assert pair.decode.finished(end) == (set(), {"d"})
    assert pair.prefill.finished(end + 1e-9) == ({"p"}, set())
    assert pair.decode.finished(end + 1) == pair.prefill.finished(end + 1) == NOTHING


def test_prompts_come_one_after_the_other() -> None:
    pair = Pair()
    pair.load("d", "key-p")
    pair.load("e", "key-q")
    second = end_s(100.0) + SECONDS.work_s(TOKENS)
    assert pair.decode.finished(second - 1e-6)[1] == {"d"}
    assert pair.decode.finished(second + 1e-6)[1] == {"e"}


def test_a_prompt_that_is_here_already_releases_its_blocks_at_once() -> None:
    pair = Pair()
    pair.hold()
    pair.load(tokens=0)
    assert pair.prefill.finished(100.0)[0] == {"p"}
    assert pair.decode.finished(1e9) == NOTHING


def test_a_release_may_come_before_the_blocks_are_known_to_be_held() -> None:
    pair = Pair()
    pair.load()
    pair.hold()
    assert pair.prefill.finished(end_s(100.0) + 1e-9)[0] == {"p"}


def test_blocks_that_nobody_reads_are_released_in_the_end() -> None:
    pair = Pair()
    pair.hold()
    assert pair.prefill.finished(100.0 + HOLD_S - 1) == NOTHING
    assert pair.prefill.finished(100.0 + HOLD_S)[0] == {"p"}


@pytest.mark.parametrize("decode_first", [True, False])
def test_a_prompt_that_is_written_ends_by_the_links_rule_whoever_knows_first(decode_first: bool) -> None:
    pair = Pair(writes=True)
    pair.prefill.order([Order("push", "p", "key-p", DECODE)], 100.0)
    pair.prefill.step({"other": True, "p": False}, 100.0, 100.2, 100.0)
    assert not pair.told
    acts = [pair.load, lambda: pair.prefill.step({"p": True}, 100.2, 100.6, 100.0)]
    for act in acts if decode_first else acts[::-1]:
        assert pair.decode.finished(200.0) == NOTHING
        act()
    end = KvLink(SECONDS).end_s(100.0, 100.6, 100.0, TOKENS)
    assert end >= 100.6
    assert pair.decode.finished(end - 1e-6) == NOTHING
    assert pair.decode.finished(end + 1e-9)[1] == {"d"}
    pair.hold()
    assert pair.prefill.finished(end + 1e-9)[0] == {"p"}


def test_a_request_that_has_ended_is_told_nobody() -> None:
    pair = Pair(writes=True)
    pair.prefill.order([Order("push", "p", "key-p", DECODE)], 100.0)
    pair.prefill.forget({"p", "unknown"})
    pair.prefill.step({"p": True}, 100.0, 100.2, 100.0)
    assert not pair.told


def test_a_prompt_that_is_never_computed_gives_its_blocks_back() -> None:
    pair = Pair(writes=True)
    pair.load()
    assert pair.decode.finished(100.0 + HOLD_S)[1] == {"d"}


def test_notices_of_unknown_prompts_are_bounded() -> None:
    pair = Pair()
    for number in range(MOST_EARLY + 1):
        pair.prefill.hear(Notice(RELEASE, f"key-{number}", 0.0, 0.0), 100.0)
    pair.hold("0")  # its notice was the oldest
    pair.hold("1")
    assert pair.prefill.finished(100.0)[0] == {"1"}


def test_an_address_is_read_in_moriios_request_ids() -> None:
    name = (
        "cmpl-___prefill_addr_host:10.0.0.1,handshake:6301,notify:61005"
        f"___decode_addr_host:10.0.0.2,handshake:7301,notify:62005_{'0a' * 16}-0-1f2e3d4c"
    )
    assert (addressed(name, to_prefill=True), addressed(name, to_prefill=False)) == (PREFILL, DECODE)
    assert addressed("cmpl-17", to_prefill=True) is None


@pytest.fixture
def heard() -> Iterator[tuple[SideChannel, Peer]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    channel = SideChannel(at := Peer("127.0.0.1", port))
    yield channel, at
    channel.close()


def test_a_notice_reaches_the_other_engine_and_noise_does_not(heard: tuple[SideChannel, Peer]) -> None:
    inbox, at = heard
    sender, noise = SideChannel(None), zmq.Context.instance().socket(zmq.PUSH)
    noise.connect(f"tcp://{at.host}:{at.port}")
    notice = Notice(COMPUTED, "key", -0.25, 1.5)
    for wrong in (b"", b"[]", b"\xff", b'["release", 1, 0, 0]', b'["open", "key", 0, 0]', b'["release"]'):
        assert parsed(wrong) is None
        noise.send(wrong)
    assert parsed(b'["release", "key", NaN, 0]') is None
    sender.send(at, notice)
    got: list[Notice] = []
    until(lambda: got.extend(inbox.received()) or got)
    noise.close(linger=0)
    sender.close()
    assert got == [notice] and inbox.received() == []
    with pytest.raises(ValueError, match=f"{at.port}, which is not available"):
        SideChannel(at)
