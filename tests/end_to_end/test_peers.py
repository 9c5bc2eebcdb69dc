"""The benchmark of other tools: what they ask of its server, and what is said of one that is missing."""

import http.client
import shutil

import pytest

from tests.benchmarks import peers
from tests.benchmarks._mock import Mock


@pytest.mark.skipif(shutil.which("cc") is None, reason="the server is compiled")
def test_the_server_answers_what_tools_ask_before_they_begin() -> None:
    with Mock() as mock:
        connection = http.client.HTTPConnection(mock.url.removeprefix("http://"), timeout=10)
        for path, status in (("/health", 200), ("/v1/models", 200), ("/healthy", 404)):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert (answer.status, b"mock" in answer.read()) == (status, path == "/v1/models")
        connection.close()


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: peer.name)
def test_a_tool_that_is_missing_is_named_with_how_to_have_it(
    peer: peers.Peer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(peer.variable, "/nowhere/tool")
    assert list(peers.rows(peer, 1.0, 1)) == []
    said = capsys.readouterr().out
    assert f"nor named by {peer.variable}; to have it: " in said and "pip install" in said


def test_vllm_is_called_as_a_module_that_needs_no_name_of_its_distribution() -> None:
    (vllm,) = [peer for peer in peers.PEERS if peer.name == "vllm"]
    python, flag, code = vllm.launch("/env/bin/vllm")
    assert (python, flag) == ("/env/bin/python", "-c") and "vllm.benchmarks.serve" in code


def test_of_a_tool_that_failed_its_last_error_is_told() -> None:
    log = "Traceback\n  File x\nValueError: first\nmodule.PackageNotFoundError: no vllm\nleaked 4 instances\n"
    assert peers._said(log) == "module.PackageNotFoundError: no vllm"
    assert peers._said("one\ntwo\n") == "one | two"
