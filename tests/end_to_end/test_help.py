"""What --help of loadgen, analysis, cluster and serve_apps promises: a dry run of every example passes."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import analysis.__main__
import cluster.__main__
import loadgen.__main__
import serve_apps.__main__
from analysis import __main__ as reading
from analysis import acts, exchange
from loadgen.__main__ import main
from loadgen.cli import arguments as grammar
from loadgen.cli import commands

ROOMS = [loadgen.__main__, analysis.__main__, cluster.__main__, serve_apps.__main__]
STAND_INS = {"workload.trace=FILE": "workload.trace=trace.csv"}
TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-01-01 00:00:00,500,20
2024-01-01 00:00:02,600,30
2024-01-01 00:00:09,40,5
"""
OF_A_RUN = ("resume",)


def examples(text: str | None) -> list[str]:
    """The commands of a help text, without what they are for."""
    joined = (text or "").replace("\\\n", " ")
    return [re.split(r" {2,}", line.strip())[0] for line in joined.splitlines() if "python -m" in line]


COMPUTED = ("predict", "progressive", "recommend")
"""Verbs whose dry run asks the engine model."""
DRY = [
    pytest.param(line, marks=[pytest.mark.slow] if shlex.split(line)[3] in COMPUTED else [])
    for line in examples(loadgen.__main__.__doc__)
    if shlex.split(line)[3] not in OF_A_RUN and "--sensitivity" not in line
]


@pytest.mark.parametrize("room", ROOMS)
def test_every_command_line_has_examples_of_its_own(room: object) -> None:
    found = examples(getattr(room, "__doc__", ""))
    name = str(getattr(room, "__package__", ""))
    assert len(found) >= 4 and all(line.startswith(f"python -m {name} ") for line in found)


@pytest.mark.parametrize("verb", loadgen.__main__.VERBS)
def test_a_verb_has_help_with_examples_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    found = examples(capsys.readouterr().out.partition("examples:")[2])
    assert ended.value.code == 0 and found
    assert all(f"{line} ".startswith(f"python -m loadgen {verb} ") for line in found)


def test_the_help_says_what_the_acts_do() -> None:
    said = {verb: str(act.__doc__).splitlines()[0] for verb, act in commands.COMMANDS.items()}
    assert said == grammar.VERBS


@pytest.mark.parametrize("verb", grammar.VERBS)
def test_the_help_of_a_verb_has_its_own_flags(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    said = capsys.readouterr().out
    own = said.partition("options:")[2]
    assert not [
        flag for flag, (verbs, _) in grammar.FLAGS.items() if verb not in verbs and f"  {flag}" in own
    ]


def test_the_help_of_readings_says_what_their_acts_do() -> None:
    assert {verb: act.__doc__ for verb, act in acts.ACTS.items()} == reading.VERBS
    assert tuple(exchange.FORMATS) == reading.FORMATS


@pytest.mark.parametrize("words", ["loadgen sweep", "analysis plan", "maxqps"])
def test_help_brings_nothing_heavy(words: str) -> None:
    room, *verb = words.split()
    code = (
        f"import sys, {room}.__main__\n"
        f"try: {room}.__main__.main([*{verb}, '--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "pyarrow", "numba", "ray", "rich", "analysis.results"}


@pytest.mark.parametrize("line", DRY)
def test_an_example_of_loadgen_can_be_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)
    words = [STAND_INS.get(word, word) for word in shlex.split(line)[3:]]
    dry = [word for word in words if word != "--dry-run"] + ["--dry-run"]
    assert main(dry) == 0
    told = capsys.readouterr()
    assert told.out and not told.err
    assert [file.name for file in tmp_path.iterdir()] == ["trace.csv"]


OF_VLLM = "python -m serve_apps model "
"""The example that needs vLLM, for random weights."""
RENDERED = [line for line in examples(serve_apps.__main__.__doc__) if not line.startswith(OF_VLLM)]


@pytest.mark.parametrize("line", RENDERED)
def test_an_example_of_serve_apps_can_be_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)[3:]
    monkeypatch.chdir(tmp_path)
    assert serve_apps.__main__.main(words) == 0 and capsys.readouterr().out
