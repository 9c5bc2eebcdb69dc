"""The flag --live of loadgen: what it refuses. test_whole_sweep.py has a page that follows a real run."""

import socket
import threading
from pathlib import Path

import pytest

from loadgen.__main__ import main
from tests.support.runs.golden import GOLDEN


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["sweep", "--live", "eighty"], "--live eighty: give a port"),
        (["sweep", "--live", "70000"], "--live 70000: give a port"),
        (["sweep", "--live", "192.0.2.1:9000"], "cannot listen there"),
        (["predict", "--live", "0"], "predict computes its answer; leave it out"),
        (["recommend", "demand.peak_qps=20", "--live", "0"], "recommend loads with --measure only"),
        (["progressive", "--live", "0"], "this clock is virtual"),
        (["quality", str(GOLDEN), str(GOLDEN), "--live", "0"], "these answers are on record"),
    ],
)
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_a_page_that_could_not_be_is_refused_in_one_line(
    words: list[str], why: str, dry: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--dry-run"] if dry else words) == 2
    said = capsys.readouterr()
    assert why in said.err and said.err.count("\n") == 1 and not said.out


@pytest.mark.parametrize("words", [["sweep"], ["resume", str(GOLDEN)]], ids=["sweep", "resume"])
def test_a_port_that_is_taken_is_refused_before_anything_starts(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main([*words, "--live", port, "--dry-run"]) == 2
        assert main([words[0], "--live", port, *words[1:]]) == 2
    assert capsys.readouterr().err.count("cannot listen there") == 2


def test_a_dry_run_with_a_free_port_starts_no_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--live", "0", "--dry-run"]) == 0
    assert not capsys.readouterr().err
    assert "live view" not in [thread.name for thread in threading.enumerate()]
