"""loadgen/prompts/bodies.py: prompts that begin alike hit the simulated engine's prefix cache over HTTP."""

import asyncio
import json
import time
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.checks import prefix_hit_error
from analysis.rows import records
from conf import load
from conf.specs.experiment import SimulatedEngine, Workload
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.rows import NO_GAPS, plan_table, planned
from loadgen.fleet.worker import Worker
from loadgen.prompts.bodies import Prompts
from loadgen.run.samplers import page_figures
from loadgen.traffic.schedule import NS, ArrivalSchedule
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model import EngineKind
from serve_apps.simulated.openai_answers import ServedModel
from serve_apps.simulated.openai_request import block_hashes, parse_chat, parse_completion
from tests.support.machine.patience import PATIENCE_S
from tests.support.runs.run_folders import facts
from tests.support.servers.plans import client_plan
from tests.support.virtual.simulated_prefix import simulated
from tests.support.virtual.virtual_service import VirtualService
from tests.support.virtual.virtual_target import VirtualTarget

HALF = load(["workload=smoke", "workload.prefix_hit=.5", "workload.input_tokens.mean=1600"])
REQUESTS = 24


def drawn(workload: Workload, streams: int = 0) -> ArrivalSchedule:
    bounds = {"window": (0, 10 * NS)}
    return Traffic(workload).draw(20.0, bounds, window_index=0, first_seq=0, seed=1, streams=streams)


@pytest.mark.parametrize("streams", [0, 3])
def test_every_schedule_says_how_much_of_a_prompt_is_shared(streams: int) -> None:
    workload = load(["workload=chat_5600_140_varied", "workload.prefix_hit=.95"]).workload
    schedule = drawn(workload, streams)
    expected = [round(0.95 * tokens) for tokens in schedule.input_tokens.tolist()]
    assert schedule.shared_tokens.tolist() == expected
    assert schedule.shard(1, 2).shared_tokens.tolist() == expected[1::2]
    assert plan_table(schedule)["shared_tokens"].to_pylist() == expected
    assert [(plan.shared_tokens, plan.stream is None) for plan in planned(schedule)] == [
        (shared, not streams) for shared in expected
    ]


@pytest.mark.parametrize(
    ("input_tokens", "hit", "shared"), [(5600, 0.99995, 5592), (10, 0.95, 2), (8, 0.99, 7), (1, 0.9, 0)]
)
def test_no_prompt_is_shared_whole(input_tokens: int, hit: float, shared: int) -> None:
    words = [f"workload.input_tokens.mean={input_tokens}", f"workload.prefix_hit={hit}"]
    workload = load(["workload=smoke", *words]).workload
    schedule = drawn(workload)
    assert set(schedule.shared_tokens.tolist()) == {shared}
    prompts = Prompts(workload, "m", 151936, salt=1)
    assert prompts.body(1, input_tokens, 4, shared) != prompts.body(2, input_tokens, 4, shared)


def test_sharing_changes_neither_arrivals_nor_lengths() -> None:
    plain, shared = (drawn(replace(HALF.workload, prefix_hit=hit)) for hit in (0.0, 0.5))
    assert not plain.shared_tokens.any()
    for name in ("due_ns", "input_tokens", "output_tokens"):
        assert np.array_equal(getattr(plain, name), getattr(shared, name))


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks"), [([], 4, 0), ([1] * 3, 4, 0), ([1] * 9, 4, 2), (["a"] * 8, 1, 8)]
)
def test_each_full_block_has_a_hash_of_its_own(tokens: list[Hashable], block_size: int, blocks: int) -> None:
    assert len(set(block_hashes(tokens, block_size))) == blocks


def test_a_hash_stands_for_all_that_came_before() -> None:
    one, other = block_hashes([1, 2, 3, 4, 5, 6], 2), block_hashes([1, 2, 3, 9, 5, 6], 2)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False]


SALTS: list[dict[str, Any]] = [{}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}]


def test_a_salt_keeps_equal_prompts_apart() -> None:
    plain, one, again, other = (block_hashes([1, 2, 3, 4], 2, salt) for salt in (None, "a", "a", "b"))
    assert one == again
    assert not {*plain, *other} & {*one} and not {*plain} & {*other}


def test_the_server_takes_the_salt_of_a_request() -> None:
    served = ServedModel("m", 32768, 151936, block_size=16)
    bodies = [json.dumps({"model": "m", "prompt": [7] * 40} | more) for more in SALTS]
    plain, one, again, other = (parse_completion(body.encode(), served).hashes for body in bodies)
    assert one == again
    assert len({plain[0], one[0], other[0]}) == 3


@pytest.mark.parametrize("prompt", ["token_ids", "text", "chat"])
def test_the_server_finds_whole_blocks_of_what_the_client_shares(prompt: str) -> None:
    prompts = Prompts(replace(HALF.workload, prompt=prompt), "m", 151936, salt=1)
    served = ServedModel("m", 32768, 151936, block_size=16)
    parse = parse_chat if prompt == "chat" else parse_completion
    one, other = (parse(prompts.body(seq, 1600, 4, 800), served) for seq in (1, 2))
    assert [a == b for a, b in zip(one.hashes, other.hashes, strict=True)] == [True] * 50 + [False] * 50
    assert parse(prompts.body(1, 1600, 4), replace(served, block_size=0)).hashes == ()


@pytest.mark.usefixtures("never_overdue")
def test_half_of_every_prompt_comes_from_the_prefix_cache(tmp_path: Path) -> None:
    rows, scraped = asyncio.run(measured(HALF.workload, tmp_path))
    assert rows["status"].to_pylist() == ["ok"] * REQUESTS
    first, *later = rows["cached_tokens"].to_pylist()
    assert first == 0
    steady = rows.slice(1)
    share = sum(later) / sum(steady["prompt_tokens"].to_pylist())
    assert share == pytest.approx(0.5, abs=0.01)
    error = prefix_hit_error(facts(steady))
    assert error is not None and error <= 0.01
    assert scraped["prefix_hits"] == sum(later)
    assert scraped["prefix_queries"] == sum(rows["prompt_tokens"].to_pylist())


def test_the_engines_of_a_virtual_target_share_the_same_prefix() -> None:
    spec = HALF.engine
    assert isinstance(spec, SimulatedEngine)
    virtual = VirtualService(EngineKind.of(spec, HALF.model, HALF.hardware, HALF.layout))
    target = VirtualTarget(virtual)
    schedule = drawn(HALF.workload)
    seen = target.run(schedule, 60 * NS)
    assert seen.ended["status"].to_pylist() == ["ok"] * len(schedule)
    assert seen.ended["shared_tokens"].to_pylist() == schedule.shared_tokens.tolist()
    (engine,) = virtual.service.arrays.engines
    assert engine["prefix_hits"] / engine["prefix_queries"] == pytest.approx(0.5, abs=0.01)


async def measured(workload: Workload, folder: Path) -> tuple[pa.Table, dict[str, int | float]]:
    """Rows of requests to a simulated engine over HTTP, the first one alone, and a scrape of its metrics."""
    experiment = replace(HALF, workload=workload)
    prompts = Prompts(workload, experiment.model.served_name, experiment.model.vocab, salt=1)
    traffic = Traffic(workload)
    async with simulated(experiment) as url:
        shard = ArrowStream(folder / "rows.arrow")
        worker = Worker(0, client_plan([url], gaps=NO_GAPS, timeout_s=PATIENCE_S), prompts, shard)
        worker.start(time.monotonic_ns(), time.time_ns())
        ended = 0
        async with asyncio.timeout(PATIENCE_S):
            for first, count in ((0, 1), (1, REQUESTS - 1)):
                await worker.offer(traffic.evenly(count, 0, NS // 100, first_seq=first, seed=1))
                while ended < first + count:
                    ended += (await worker.observe()).ended.num_rows
                    await asyncio.sleep(0.02)
        await worker.finish(PATIENCE_S)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            scraped = page_figures(await response.text())
    return records.read_shard(shard.path).sort_by("seq"), scraped
