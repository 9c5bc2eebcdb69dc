"""`serve_apps.vllm_emulated` as a prefill and a decode engine: who waits for KV, and who holds blocks."""

import json
from dataclasses import asdict

import pytest

from conf.specs.experiment import EmulatedEngine
from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.vllm_emulated.gpu import EmulatedGpu
from serve_apps.vllm_emulated.platform_plugin import ENVIRONMENT
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.vllm.emulated_pair import HARDWARE, LAYOUT, MODEL, Case, Seen
from tests.vllm.running import said

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT, TRIES = 5600, 3
SLOW_S = 1.5
"""What the KV of a prompt takes on a slow way: much more than all else, however busy the machine is."""
SLOW = SLOW_S / PROMPT
MORIIO = "MoRIIOConnector"
CASES = {
    "fast": Case(rounds=TRIES),
    "late": Case(latency_s=SLOW_S),
    "slow": Case(transfer_s=SLOW, prompts=(PROMPT, PROMPT)),
    "moriio": Case(MORIIO, transfer_s=SLOW),
    "written": Case(MORIIO, write=True, transfer_s=SLOW),
    "written, fast": Case(MORIIO, write=True, rounds=TRIES),
    "given up": Case(transfer_s=SLOW, abort_decode=True),
    "written, given up": Case(MORIIO, write=True, transfer_s=SLOW, abort_decode=True),
    "seen before": Case(transfer_s=SLOW, rounds=TRIES, caching=True, alike=True),
    "tight": Case(prompts=4 * (160,), output=40, blocks=45),
}


def costs() -> tuple[float, float]:
    """Seconds of the step that computes the prompt, and of one that decodes its first token."""
    gpu = EmulatedGpu.from_specs(EmulatedEngine(), MODEL, HARDWARE, LAYOUT.decode_side, split=LAYOUT)
    prompt, last = Batch(sequences=1), Batch(1, 0, PROMPT - 1, 0.0, 1)
    prompt.add_chunk(PROMPT, 0)
    return gpu.costs.duration_s(prompt), gpu.costs.duration_s(last)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    folder = write_folder(MODEL, tmp_path_factory.mktemp("model"))
    asked = json.dumps([asdict(case) for case in CASES.values()])
    environment = {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "ERROR"}
    told = said(["-m", "tests.vllm.emulated_pair", str(folder), asked], environment, folder)
    return {name: Seen(**one) for name, one in zip(CASES, told, strict=True)}


def test_every_token_is_answered_and_every_block_is_free_again(seen: dict[str, Seen]) -> None:
    for name, case in CASES.items():
        expected = [] if case.abort_decode else case.rounds * len(case.prompts) * [case.output]
        assert seen[name].tokens == expected, name
        assert seen[name].left_blocks == [0, 0], name


def test_the_first_token_waits_for_the_kv(seen: dict[str, Seen]) -> None:
    """Nothing is ever earlier than the model says; of what is later the nearest counts."""
    prompt_s, last_s = costs()
    alone_s = prompt_s + last_s
    assert alone_s <= min(seen["fast"].ttft_s) < alone_s + SLOW_S
    for name in ("late", "moriio"):
        assert seen[name].ttft_s[0] >= alone_s + SLOW_S
    # Prompts come one after the other; computing the second one takes less than the first one's way.
    first_s, second_s = sorted(seen["slow"].ttft_s)
    assert first_s >= alone_s + SLOW_S and second_s >= alone_s + 2 * SLOW_S


def test_a_prompt_that_is_written_flows_while_it_is_computed(seen: dict[str, Seen]) -> None:
    prompt_s, last_s = costs()
    assert seen["written"].ttft_s[0] >= SLOW_S + last_s
    assert prompt_s + last_s <= min(seen["written, fast"].ttft_s) < SLOW_S


def test_prefill_holds_its_blocks_until_they_are_read(seen: dict[str, Seen]) -> None:
    assert seen["slow"].held_blocks >= PROMPT // 16
    assert seen["moriio"].held_blocks >= PROMPT // 16


def test_only_what_is_not_cached_is_fetched(seen: dict[str, Seen]) -> None:
    first_s, *again_s = seen["seen before"].ttft_s
    assert first_s >= SLOW_S > min(again_s)


def test_a_request_that_is_preempted_computes_its_prompt_itself(seen: dict[str, Seen]) -> None:
    assert seen["tight"].preempted > 0
