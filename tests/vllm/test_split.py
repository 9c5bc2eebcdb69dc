"""`serve_apps.vllm_engine`: other deployments of real vLLM on this CPU, each of which takes a minute or two.

A prefill and a decode engine, between which NIXL moves KV: its UCX backend needs no RDMA, within a machine it
takes shared memory or TCP. And vLLM's own server as a child process behind a replica, with the same API.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from conf import load
from loadgen.cli.service import service
from loadgen.drive import programs
from loadgen.run.jobs import OfferLoad, Service
from tests.support.machine import tries
from tests.support.words.words import QUEUE, WORDS, over
from tests.vllm.running import Up, post

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ALONE = over(WORDS, "fleet.drain_s=120")
SPLIT = over(ALONE, "layout=1p1d_tp1")
LOAD = "rate_qps=3", "duration_s=4"
LENGTHS = 1, 64, 128, 129, 300
"""Tokens of prompts around a block of the CPU build, which has 128."""
TOKENS, ALIKE = 12, 4
"""Of an answer, and of those the first that must be the same: random weights have near ties, which another
order of sums decides, and of wrong KV not one token in a thousand would be right."""


def deployed(words: list[str]) -> Any:
    return service(load(words), lambda *_, **__: None)


def greedy(served: Service) -> list[list[int]]:
    """The tokens of greedy answers to prompts of all lengths, none of which begins as another does."""
    answers = []
    for number, length in enumerate(LENGTHS):
        body = {
            "model": load(WORDS).model.served_name,
            "prompt": [(7 * place + 31 * number) % 900 + 10 for place in range(length)],
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = json.loads(post(served.urls[0], json.dumps(body).encode()))
        answers.append(answer["choices"][0]["token_ids"])
    return answers


@dataclass(frozen=True)
class Alone:
    """One engine that computes prompts and answers: what it answered, a probe of it, and its settings."""

    answers: list[list[int]]
    tree: dict[str, Any]
    rows: list[dict[str, Any]]
    replica: dict[str, Any]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """vLLM's own server process behind a plain replica; its deployment has ended."""
    words = [*ALONE, *QUEUE, "engine.server=process", "routing=roundrobin"]
    with pytest.MonkeyPatch.context() as patch, deployed(words) as served:
        patch.setattr(programs, "PROBE_TRANSITION_S", 1.0)
        answers = greedy(served)
        tree, run = Up(served, words, tmp_path_factory.mktemp("alone")).run(OfferLoad, *LOAD)
        (replica,) = served.reported["replicas"].values()
        return Alone(answers, tree, run.requests().to_pylist(), replica)


def test_the_fallback_serves_the_same_api(alone: Alone) -> None:
    assert alone.replica["pid"] and "--enforce-eager" in alone.replica["told"]["engine"]["argv"]
    # A busy machine may miss sending some; whatever was sent is answered.
    tries.refuse_other_reasons(alone.tree)
    statuses = {row["status"] for row in alone.rows}
    assert "ok" in statuses and statuses <= {"ok", "missed"}, alone.tree["reason"]
    assert all(row["queue_us"] >= 0 for row in alone.rows if row["status"] == "ok")


@pytest.fixture(scope="module")
def up(alone: Alone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with deployed(SPLIT) as served:
        yield Up(served, SPLIT, tmp_path_factory.mktemp("runs"))


def by_source(up: Up) -> dict[str, float]:
    """Prompt tokens of the decode engine by where their KV is from, as vLLM counts them."""
    (page,) = up.pages()
    result = {}
    for line in page.splitlines():
        if line.startswith("vllm:prompt_tokens_by_source_total{"):
            result[line.partition('source="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
    return result


def test_answers_are_those_of_one_engine_alone_and_no_prompt_is_computed_twice(up: Up, alone: Alone) -> None:
    before = by_source(up)
    for ours, theirs in zip(greedy(up.served), alone.answers, strict=True):
        assert len(ours) == TOKENS and ours[:ALIKE] == theirs[:ALIKE]
    gone = {source: count - before[source] for source, count in by_source(up).items()}
    # A prompt of one token has nothing to send but the token that is computed anyway.
    assert gone["local_compute"] <= 1
    assert gone["external_kv_transfer"] >= sum(LENGTHS) - 1 and gone["local_cache_hit"] == 0


def test_both_sides_are_read_back(up: Up) -> None:
    (replica,) = up.served.reported["replicas"].values()
    assert replica["deployment"].startswith("LLMServerDecode:")
    told = replica["told"]
    assert told["engine"]["kv_transfer"] == {"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}
    assert told["prefill_engine"]["kv_transfer"]["kv_role"] == "kv_producer"
    assert up.served.reported["engine"]["prefill"]["args"]["max_model_len"] == 8192
    assert up.served.fault() is None


def test_a_probe_is_answered_in_full(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "PROBE_TRANSITION_S", 1.0)
    before = by_source(up)
    tree, run = up.run(OfferLoad, *LOAD)
    tries.refuse_other_reasons(tree)
    rows = run.requests()
    assert set(rows["status"].to_pylist()) <= {"ok", "missed"}, tree["reason"]
    ok = rows.filter(np.array(rows["status"].to_pylist()) == "ok")
    assert ok.num_rows > 0 and set(ok["finish_reason"].to_pylist()) == {"length"}
    gone = {source: count - before[source] for source, count in by_source(up).items()}
    assert gone["external_kv_transfer"] > 0
    assert gone["local_compute"] <= rows.num_rows  # at most the last token of each
