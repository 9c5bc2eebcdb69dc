"""conf.load: every file loads, precedence holds, and each wrong word is one clear line."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import pytest
import yaml

from conf import ConfigError, load
from conf.compose import dump
from conf.specs.experiment import Lengths
from conf.specs.search import Quality
from conf.words import groups

NEEDS = {
    "engine=external": ["target.urls=[http://127.0.0.1:8000]"],
    "model=tiny_qwen3_moe": ["layout=dp1_tp1"],
    "workload=vision_100_200": ["model=qwen3_vl_235b_bf16"],
    "workload=trace": ["workload.trace=a/trace.jsonl"],
    "routing=bounded_hash": ["workload=chat_sessions"],
    "routing=client_side": ["workload=chat_sessions"],
    "routing=consistent_hash": ["workload=chat_sessions"],
    "routing=kv_aware": ["engine=vllm", "workload.prompt=text"],
    "routing=prefix_affinity": ["engine=vllm", "workload.prompt=text"],
}
REFUSED = yaml.safe_load((Path(__file__).parents[1] / "data" / "refused_words.yaml").read_text())


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("row", REFUSED, ids=lambda row: " ".join(row[:-1]))
def test_a_wrong_word_and_words_that_do_not_go_together_are_one_line(row: list[str]) -> None:
    *words, message = row
    with pytest.raises(ConfigError) as caught:
        load(words)
    line = str(caught.value)
    assert message in line and "\n" not in line and "hush" not in line, "a secret is not shown"
    assert "{" not in line or "{" in "".join(row) or words[-1].startswith("slo.bounds"), (
        "a field is not filled"
    )


def test_endpoints_may_stand_for_many_nodes_and_get_no_key_unasked() -> None:
    urls = "target.urls=['http://[::1]:8000', 'https://host/prefix']"
    experiment = load(["engine=external", urls, "cluster.nodes=4"])
    assert experiment.target.urls == ["http://[::1]:8000", "https://host/prefix"]
    assert (experiment.cluster.nodes, experiment.target.api_key_env) == (4, "")
    assert load(["cluster.nodes=4", "cluster.session=fake"]).cluster.nodes == 4


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://host:8000", "http://host:8000"),
        ("http://host:8000/v1", "http://host:8000"),
        ("https://gw/team/llm", "https://gw/team/llm"),
        ("https://gw/team/llm/v1/", "https://gw/team/llm"),
        ("https://gw/team/v1/models", "https://gw/team"),
        ("https://gw/v1/chat/completions", "https://gw"),
        ("https://gw/v1beta", "https://gw/v1beta"),
        ("https://v1/", "https://v1"),
    ],
)
def test_a_url_may_have_a_path_and_end_in_v1(url: str, base: str) -> None:
    assert load(["engine=external", f"target.urls=['{url}']"]).target.bases == [base]


PLAIN = load()
LOADS = [
    "rate_qps=4 workload=chat_5600_140_bursty",
    "profile_qps=[[0,2],[20,8],[20,4],[60,0]]",
    "profile_qps=[[0,5]] duration_s=120",
    "concurrency=64 requests=100",
    "workload=trace workload.input_tokens.mean=12 workload.output_tokens.mean=3",
    "workload=trace workload.arrivals.kind=poisson concurrency=8",
    "workload.trace=a.csv workload.arrivals.kind=trace rate_qps=4",
]


TOGETHER = ("workload", "hardware", "search", "fleet", "slo", "cluster")
"""Groups whose choices get along: one experiment tries the next choice of each."""
CHOICES = {group: [f"{group}={name}" for name in names] for group, names in groups().items()}
EVERY_CHOICE = [
    *zip(*(islice(cycle(CHOICES[group]), len(CHOICES["workload"])) for group in TOGETHER), strict=True),
    *((word,) for group in CHOICES if group not in TOGETHER for word in CHOICES[group]),
]


ROUND_TRIPS = [pytest.param(words, marks=pytest.mark.slow, id=" ".join(words)) for words in EVERY_CHOICE]
ROUND_TRIPS += [pytest.param(words.split(), id=words) for words in LOADS]


@pytest.mark.parametrize("words", ROUND_TRIPS)
def test_every_choice_and_kind_of_load_survives_a_round_trip(words: Sequence[str], tmp_path: Path) -> None:
    experiment = load([*words, *(more for word in words for more in NEEDS.get(word, []))])
    saved = tmp_path / "config.yaml"
    saved.write_text(dump(experiment))
    assert load(base=saved) == experiment


def test_a_closed_loop_asks_ten_times_what_is_in_flight_unless_told() -> None:
    assert replace(PLAIN, concurrency=64).closed_requests == 640
    assert replace(PLAIN, concurrency=64, requests=100).closed_requests == 100


def test_a_value_beats_its_file_in_any_order() -> None:
    words = ["slo.ttft_p90_ms=1500", "slo=interactive"]
    for order in (words, words[::-1]):
        slo = load(order).slo
        assert (slo.name, slo.ttft_p90_ms, slo.tpot_p90_ms) == ("interactive", 1500, 50)


@pytest.mark.slow
def test_a_saved_calibration_is_dropped_only_with_its_values(tmp_path: Path) -> None:
    fitted, saved = tmp_path / "fitted.yaml", tmp_path / "config.yaml"
    fitted.write_text("constants: {model.step_time.layer_us: {value: 92, source: fit}}")
    saved.write_text(dump(load([f"engine.constants={fitted}"])))
    for words in (["engine=simulated"], ["engine.constants=''"], ["engine=simulated", "hardware=mi325x"]):
        with pytest.raises(ConfigError, match="also choose model=NAME hardware=NAME$"):
            load(words, base=saved)
    afresh = ["engine=simulated", "model=qwen3_235b_a22b_fp8", "hardware=mi325x"]
    assert load(afresh, base=saved) == PLAIN
    assert load(["engine=simulated", f"engine.constants={fitted}"], base=saved) == load(base=saved)
    assert load(["engine=vllm"], base=saved).engine.kind == "vllm"


@pytest.mark.parametrize("group", ["engine", "layout", "target"])
@pytest.mark.parametrize("value", ["simulated", "[1]", "null"])
def test_a_group_of_a_saved_tree_is_a_mapping(group: str, value: str, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(f"{group}: {value}")
    with pytest.raises(ConfigError, match=f"{group} is not a mapping of keys to values"):
        load(base=saved)


BROKEN = ["- a list", "a: [", "", "seed: ${oc.env:HOME}", "seed: 1\nseed: 2", "engine: {kind: [1]}", "1: 2"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_saved_tree_is_one_line(text: str, tmp_path: Path) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(base=saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["env.TOKENIZERS_PARALLELISM=0", "args.long_prefill_token_threshold=1"])
def test_what_only_sounds_like_a_secret_is_not_refused(word: str) -> None:
    assert load(["engine=vllm", f"engine.{word}"]).engine.kind == "vllm"


@pytest.mark.parametrize("before", [[], ["workload=chat_5600_140_varied"]])
def test_a_number_for_lengths_is_a_fixed_length(before: list[str]) -> None:
    workload = load([*before, "workload.input_tokens=800"]).workload
    assert workload.input_tokens == Lengths(800)
    assert workload.output_tokens == load(before).workload.output_tokens


@pytest.mark.parametrize("word, rate_qps", [("idle", None), ("2.5", 2.5), ("3", 3.0)])
def test_the_load_of_the_quality_gate_is_a_word_or_a_rate(word: str, rate_qps: float | None) -> None:
    quality = load([f"quality.load={word}"]).quality
    assert (quality.load, quality.rate_qps) == (word, rate_qps)
    assert PLAIN.quality == Quality()
