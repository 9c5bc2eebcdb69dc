"""`python -m loadgen quality` on real Ray and HTTP: a simulated engine with a defect to find."""

import json
from pathlib import Path

import pytest

from analysis.quality import answer_file
from analysis.results import summary
from loadgen.__main__ import main

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.usefixtures("on_standing"),
]

WORDS = [
    "b.engine.defect=0.3",
    "quality.load=2",
    "quality.prompts=80",
    "quality.margin_nats=.2",
    "quality.margin_broken=.2",
    "run=gate",
]
"""Wide margins, which few prompts decide."""


def test_a_defect_is_found_beside_a_load_and_the_folder_says_so_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quality", *WORDS, f"out={tmp_path}", "--json"]) == summary.EXIT_DEGRADED
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["quality"]["verdict"] == "DEGRADED"
    assert result["requests"]["rows"] > 0
    path = tmp_path / "gate"
    assert (path / "report.html").exists()
    for side, repeats in (("a", {0, 1}), ("b", {0})):
        answers = answer_file.read(path / side / answer_file.FILE)
        assert {answer.repeat for answer in answers} == repeats
        assert all(answer.answer for answer in answers)
    assert main(["quality", str(path / "a"), str(path / "b"), "--json"]) == summary.EXIT_DEGRADED
    assert json.loads(capsys.readouterr().out)["quality"] == result["quality"]
