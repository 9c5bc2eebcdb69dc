"""loadgen/run/endpoint.py: an endpoint says what it serves, and its key reaches no other."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conf import ConfigError, load
from conf.io.http_get import DEFAULT_ACCESS, Access
from conf.io.secret import Secret
from loadgen.cli.words import experiment_of, spelled
from loadgen.run.endpoint import TargetError, access_to, models_of, with_served_model
from tests.support.servers.certificates import self_signed
from tests.support.servers.threaded_server import Reply, reply, serving


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may stand still for seconds."""
    monkeypatch.setattr("loadgen.run.endpoint.NAMES_TIMEOUT_S", 60.0)


@contextmanager
def server(answer: Reply) -> Iterator[tuple[str, list[str | None]]]:
    """The address of a server, and the key of each request that it got."""
    keys: list[str | None] = []

    def answered(headers: Mapping[str, str], _: bytes) -> Reply:
        keys.append(headers.get("Authorization"))
        return answer

    with serving(answered) as url:
        yield url, keys


def says(body: bytes, status: int = 200, **headers: str) -> Reply:
    return status, headers, body


def models(*names: str) -> Reply:
    return reply({"data": [{"id": name} for name in names]})


@pytest.mark.parametrize(("key", "sent"), [("secret", "Bearer secret"), (None, None)])
def test_a_server_gets_its_key_and_says_its_models(key: str | None, sent: str | None) -> None:
    with server(models("m")) as (url, keys):
        assert models_of(url, Access(Secret(key) if key else None)) == [{"id": "m"}]
    assert keys == [sent]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_refused_and_the_key_stays(status: int) -> None:
    with (
        server(models("m")) as (elsewhere, keys),
        server(says(b"", status, Location=f"{elsewhere}/v1/models")) as (url, _),
        pytest.raises(TargetError) as refused,
    ):
        models_of(url, Access(Secret("secret")))
    assert keys == []
    assert str(refused.value) == (
        f"{url}/v1/models does not answer as a model server: it redirects, which is not followed; "
        f"give the address that it leads to: {elsewhere}/v1/models"
    )


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(models("proxied")) as (proxy, keys), server(models("m")) as (url, _):
        monkeypatch.setenv("http_proxy", proxy)
        assert models_of(url, Access(Secret("secret"))) == [{"id": "m"}]
    assert keys == []


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (says(b"", 401), "HTTP 401"),
        (says(b"", 302), "without saying where"),
        (says(b"", 302, Location="file:///etc/hostname"), "leads to: file:///etc/hostname"),
        (says(b"<html>"), "Expecting value"),
        (says(b"{}"), "no list of models"),
        (says(b"[]"), "no list of models"),
    ],
)
def test_what_is_no_model_server_is_told_in_one_line(answer: Reply, why: str) -> None:
    with server(answer) as (url, _), pytest.raises(TargetError) as refused:
        models_of(url, DEFAULT_ACCESS)
    message = str(refused.value)
    assert message.startswith(f"{url}/v1/models does not answer as a model server: ") and why in message
    assert "\n" not in message


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_server_without_a_list_says_how_to_go_on(status: int) -> None:
    with server(says(b"", status)) as (url, _), pytest.raises(TargetError) as refused:
        models_of(url, DEFAULT_ACCESS)
    assert str(refused.value).endswith("; for a server without this list add target.list_models=false")


def test_certificates_are_read_once_and_by_their_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    self_signed(tmp_path)
    words = ["https://gw", "target.ca_file=mock.pem", "target.list_models=false"]
    target = experiment_of("sweep", words, None).target
    assert target.ca_file == str(tmp_path / "mock.pem")
    assert access_to(target).ca.startswith("-----BEGIN CERTIFICATE-----")


def listing(*names: str) -> Any:
    return serving(lambda *_: reply({"data": [{"id": name} for name in names]}))


@pytest.mark.parametrize("word", ["", "model=llama31_405b_fp8"])
def test_the_one_served_model_gives_the_name_in_requests(word: str) -> None:
    with listing("org/mine") as url:
        result = with_served_model(load(spelled([url, *filter(None, [word])])), is_named=False).model
    assert result.served_name == "org/mine"
    assert result.name == ("Llama-3.1-405B-Instruct-FP8" if word else "org/mine")


def test_several_models_and_a_name_that_is_not_served_are_refused_with_the_names() -> None:
    with listing("a", "b") as url:
        with pytest.raises(ConfigError, match=r"serves 2 models; choose model=NAME from: a, b"):
            with_served_model(load(spelled([url])), is_named=False)
        with pytest.raises(ConfigError, match=r"does not serve c; choose model=NAME from: a, b"):
            with_served_model(load(spelled([url, "model=c"])), is_named=True)
        assert with_served_model(load(spelled([url, "model=b"])), is_named=True).model.served_name == "b"
        with listing("b") as other:
            both = with_served_model(load(spelled([url, other])), is_named=False)
    assert both.model.served_name == "b"


def test_the_cells_of_a_grid_share_one_look_at_the_list() -> None:
    with server(reply({"data": [{"id": "a"}]})) as (url, looks):
        for rate_qps in (1, 2):
            result = with_served_model(load([*spelled([url]), f"rate_qps={rate_qps}"]), is_named=False)
            assert result.model.served_name == "a"
    assert len(looks) == 1


def test_an_endpoint_that_does_not_answer_is_left_to_the_run() -> None:
    experiment = load(spelled(["http://127.0.0.1:9"]))
    assert with_served_model(experiment, is_named=False) == experiment
