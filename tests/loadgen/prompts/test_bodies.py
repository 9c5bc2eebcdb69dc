"""loadgen/prompts/bodies.py: exact lengths; prompts that begin alike hit the prefix cache over HTTP."""

import asyncio
import json
from collections.abc import Hashable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.capacity.checks import prefix_hit_error
from analysis.rows import records
from conf import load
from conf.specs.experiment import Workload
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.fleet.rows import plan_table
from loadgen.prompts.bodies import UNIQUE_TOKENS, Prompts
from loadgen.run.samplers import page_figures
from loadgen.traffic.schedule import NS, Planned, planned
from loadgen.traffic.traffic import Traffic
from serve_apps.simulated.openai_answers import ServedModel
from serve_apps.simulated.openai_request import block_hashes, parse_chat, parse_completion
from tests.support.machine.patience import PATIENCE_S
from tests.support.prompts.bodies import WORDS, shared_by_plan, tokens
from tests.support.prompts.chats import common
from tests.support.prompts.schedules import drawn
from tests.support.runs.run_folders import facts
from tests.support.servers.workers import played, started
from tests.support.virtual.simulated_prefix import simulated

IDS = load().workload
TEXT = load(["workload.prompt=text"]).workload
CHAT = load(["workload=chat_5600_140_api"]).workload


@cache
def prompts_of(kind: str, vocab: int = 151936) -> Prompts:
    return Prompts(load([f"workload.prompt={kind}"]).workload, "m", vocab, salt=3)


def body(prompts: Prompts, seq: int, inputs: int, outputs: int = 140, shared: int = 0) -> Any:
    return json.loads(prompts.body(seq, inputs, outputs, shared))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**40 - 1), st.integers(1, 9000), st.sampled_from([1024, 32000, 128256, 151936]))
def test_a_body_has_exactly_the_asked_tokens(seq: int, inputs: int, vocab: int) -> None:
    tree = body(prompts_of("token_ids", vocab), seq, inputs)
    assert len(tree["prompt"]) == inputs
    assert all(0 <= token < vocab for token in tree["prompt"])
    assert (tree["max_tokens"], tree["min_tokens"], tree["ignore_eos"]) == (140, 140, True)
    assert tree["stream"] and tree["stream_options"] == {"include_usage": True} and tree["model"] == "m"


def test_a_chat_is_one_message_with_the_words_of_the_text() -> None:
    chat, text = Prompts(CHAT, "m", 151936, salt=3), Prompts(TEXT, "m", 151936, salt=3)
    asked, plain = body(chat, 5, 321), body(text, 5, 321)
    assert asked.pop("messages") == [{"role": "user", "content": plain.pop("prompt")}]
    assert asked == plain


def test_the_path_belongs_to_the_bodies() -> None:
    paths = [Prompts(workload, "m", 151936, salt=3).path for workload in (IDS, TEXT, CHAT)]
    assert paths == ["/v1/completions", "/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("workload", [IDS, TEXT, CHAT], ids=["ids", "text", "chat"])
def test_no_two_prompts_share_their_first_tokens(workload: Workload) -> None:
    beginnings = set()
    for salt in (1, 2):
        prompts = Prompts(workload, "m", 151936, salt)
        for seq in range(300):
            beginnings.add(tuple(tokens(prompts.body(seq, 64, 140))[:UNIQUE_TOKENS]))
    assert len(beginnings) == 600


@pytest.mark.parametrize("kind", ["token_ids", "text", "chat"])
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_prompts_share_the_asked_beginning_and_nothing_after_it(kind: str, data: st.DataObject) -> None:
    prompts = prompts_of(kind)
    lengths = [data.draw(st.integers(40, 9000)) for _ in range(2)]
    shared = [data.draw(st.integers(0, length - UNIQUE_TOKENS)) for length in lengths]
    first, second = (
        tokens(prompts.body(seq, *of)) for seq, of in enumerate(zip(lengths, [1, 1], shared, strict=True))
    )
    assert (len(first), len(second)) == tuple(lengths)
    common = next(i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1])
    assert common == min(shared)


def test_a_prompt_may_be_all_shared() -> None:
    prompts = prompts_of("token_ids")
    assert body(prompts, 1, 50, shared=50) == body(prompts, 2, 50, shared=50)


def test_a_shared_beginning_is_as_long_as_asked_beyond_the_pool() -> None:
    prompts = prompts_of("token_ids")
    long, short = (tokens(prompts.body(1, inputs, 140, inputs - 10)) for inputs in (200_010, 1010))
    assert len(long) == 200_010
    assert long[:1000] == short[:1000]


def test_another_salt_shares_another_beginning() -> None:
    first, second = (tokens(Prompts(IDS, "m", 151936, salt).body(1, 99, 140, 90)) for salt in (1, 2))
    assert first[:90] != second[:90]


HALF = load(["workload=smoke", "workload.prefix_hit=.5", "workload.input_tokens.mean=1600"])
REQUESTS = 24


@pytest.mark.parametrize("streams", [0, 3])
def test_every_schedule_says_how_much_of_a_prompt_is_shared(streams: int) -> None:
    workload = load(["workload=chat_5600_140_varied", "workload.prefix_hit=.95"]).workload
    schedule = drawn(workload, 20.0, 10, streams=streams)
    expected = [round(0.95 * tokens) for tokens in schedule.input_tokens.tolist()]
    assert schedule.shared_tokens.tolist() == expected
    assert schedule.shard(1, 2).shared_tokens.tolist() == expected[1::2]
    assert plan_table(schedule)["shared_tokens"].to_pylist() == expected
    assert [(plan.shared_tokens, plan.stream is None) for plan in planned(schedule)] == [
        (shared, not streams) for shared in expected
    ]


@pytest.mark.parametrize(
    ("input_tokens", "hit", "shared"),
    [(5600, 0.99995, 5592), (10, 0.95, 2), (8, 0.99, 7), (1, 0.9, 0), (9, 0.0, 0)],
)
def test_no_prompt_is_shared_whole(input_tokens: int, hit: float, shared: int) -> None:
    words = [f"workload.input_tokens.mean={input_tokens}", f"workload.prefix_hit={hit}"]
    workload = load(["workload=smoke", *words]).workload
    schedule = drawn(workload, 20.0, 10)
    assert set(schedule.shared_tokens.tolist()) == {shared}
    prompts = Prompts(workload, "m", 151936, salt=1)
    assert prompts.body(1, input_tokens, 4, shared) != prompts.body(2, input_tokens, 4, shared)


def test_sharing_changes_neither_arrivals_nor_lengths() -> None:
    plain, shared = (drawn(replace(HALF.workload, prefix_hit=hit), 20.0, 10) for hit in (0.0, 0.5))
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


async def measured(workload: Workload, folder: Path) -> tuple[pa.Table, dict[str, int | float]]:
    """Rows of requests to a simulated engine over HTTP, the first one alone, and a scrape of its metrics."""
    experiment = replace(HALF, workload=workload)
    prompts = Prompts(workload, experiment.model.served_name, experiment.model.vocab, salt=1)
    traffic = Traffic(workload)
    async with simulated(experiment) as url:
        shard = ArrowStream(folder / "rows.arrow")
        worker = started([url], prompts, shard)
        for first, count in ((0, 1), (1, REQUESTS - 1)):
            await played(worker, traffic.evenly(count, 0, NS // 100, first_seq=first, seed=1))
        await worker.finish(PATIENCE_S)
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
            scraped = page_figures(await response.text())
    return records.read_shard(shard.path).sort_by("seq"), scraped


SMALL = load(WORDS).workload
KINDS = ("token_ids", "text", "chat")


@cache
def talking(kind: str, salt: int = 3) -> Prompts:
    return Prompts(load([*WORDS, f"workload.prompt={kind}"]).workload, "m", 151936, salt)


@pytest.mark.parametrize("kind", KINDS)
def test_two_turns_begin_alike_as_far_as_the_plan_says_and_no_further(kind: str) -> None:
    prompts, turns = talking(kind), planned(drawn(SMALL, 3.0, 80))
    lists = [tokens(prompts.turn(turn)) for turn in turns]
    assert all(len(each) == turn.input_tokens for each, turn in zip(lists, turns, strict=True))
    assert len({turn.history_cut for turn in turns}) > 2
    names = set()
    for i in range(0, len(turns), 9):
        for j in range(i):
            level = shared_by_plan(turns[i], turns[j])
            assert common(lists[i], lists[j]) == level
            names.add((turns[i].character == turns[j].character, turns[i].session == turns[j].session))
    assert names == {(False, False), (True, False), (True, True)}


def test_another_run_says_nothing_alike() -> None:
    turn = planned(drawn(SMALL, 3.0, 200))[0]
    ours, others = (tokens(talking("token_ids", salt).turn(turn)) for salt in (3, 4))
    assert common(ours, others) == 0


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**7), st.integers(0, 2**31 - 1), st.integers(0, 2**20), st.integers(17, 70_000))
def test_any_numbers_make_a_body_of_asked_length(character: int, session: int, cut: int, count: int) -> None:
    turn = Planned(0, 0, "window", 0, count, 7, 4, session=session, character=character, history_cut=cut)
    turn.character_tokens, turn.persona_tokens = 9, 8
    tree = json.loads(talking("token_ids").turn(turn))
    assert len(tree["prompt"]) == count and tree["max_tokens"] == tree["min_tokens"] == 7
    other = replace(turn, history_cut=cut + 1)
    assert common(tree["prompt"], tokens(talking("token_ids").turn(other))) == 17
