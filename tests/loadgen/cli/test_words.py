"""loadgen/cli/words.py and shape_words.py: what short words stand for, and words that are refused."""

import json

import pytest

from conf import ConfigError, load
from loadgen.cli.words import COMMON_VOCAB, spelled

URL = "http://10.0.0.7:8000/team/v1"


def test_a_url_alone_is_an_external_endpoint_of_which_nothing_is_assumed() -> None:
    experiment = load(spelled([URL]))
    assert experiment.engine.kind == "external" and experiment.target.bases == ["http://10.0.0.7:8000/team"]
    unnamed = (experiment.model, experiment.hardware, experiment.layout, experiment.routing)
    assert {spec.name for spec in unnamed} == {"unknown"}
    assert (experiment.cluster.nodes, experiment.model.vocab) == (1, COMMON_VOCAB)


def test_several_urls_ipv6_and_the_users_own_words_stand() -> None:
    urls = ["http://[::1]:8000", "https://gateway.example/a"]
    experiment = load(spelled([urls[0], "cluster.nodes=2", "model.vocab=500", urls[1]]))
    assert experiment.target.urls == urls
    assert (experiment.cluster.nodes, experiment.model.vocab) == (2, 500)


def test_a_model_is_a_file_of_ours_or_the_name_in_the_requests() -> None:
    other = load(spelled([URL, "model=my-org/My-Model"])).model
    assert (other.name, other.served_name, other.vocab) == (
        "my-org/My-Model",
        "my-org/My-Model",
        COMMON_VOCAB,
    )
    ours = load(spelled([URL, "model=llama31_405b_fp8"])).model
    assert ours.name == "Llama-3.1-405B-Instruct-FP8" and ours.vocab == 128256
    assert spelled(["model=nothing_of_ours"]) == ["model=nothing_of_ours"]  # without a URL as before


@pytest.mark.parametrize(
    ("word", "full"),
    [
        ("isl=512", "workload.input_tokens.mean=512"),
        ("osl=64", "workload.output_tokens.mean=64"),
        ("duration=20s", "duration_s=20"),
        ("duration=90", "duration_s=90"),
        ("search.budget_s=15m", "search.budget_s=900"),
        ("budget=.5h", "search.budget_s=1800"),
        ("search.window_s=2500ms", "search.window_s=2.5"),
        ("run=20s", "run=20s"),
        ("slo.ttft_p90_ms=1500", "slo.ttft_p90_ms=1500"),
    ],
)
def test_short_words_stand_for_full_keys_and_times_for_seconds(word: str, full: str) -> None:
    assert spelled([word]) == [full]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([URL, "engine=vllm"], r"is measured as it is, but engine=vllm deploys a service; leave one out"),
        ([URL, f"target.urls={json.dumps([URL])}"], r"both name the endpoint; leave one out"),
    ],
)
def test_a_url_beside_another_service_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spelled(words)
