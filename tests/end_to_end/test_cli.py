"""The commands as a user types them: help, examples, refusals, files of --out, the README's first screen."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis.__main__
import cluster.__main__
import loadgen.__main__
import serve_apps.__main__
from analysis import load_run
from loadgen.__main__ import main
from loadgen.cli import arguments as grammar
from loadgen.cli import output
from tests.support import commands
from tests.support.commands import ROOT, WORDS
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, START_S
from tests.support.runs.run_folders import check_folder
from tests.support.servers.mock_server import answer, serving


def test_a_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--dry-run", f"out={tmp_path}"]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f'out: "{tmp_path}"  # default "runs"\n')
    assert "of load after the start, at most" in output
    assert "# 1 replica(s) on 1 node(s): 1 x TP8/EP8\n" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session", "nothing_left")
@pytest.mark.parametrize(
    "words", [["sweep"], ["compare", "b.target.urls=[http://127.0.0.1:8]"]], ids=["sweep", "compare"]
)
def test_an_unreachable_target_is_exit_5_and_leaves_no_folder(words: list[str], tmp_path: Path) -> None:
    own = "engine=external", "target.urls=[http://127.0.0.1:9]", f"out={tmp_path}", "run=gone"
    done = commands.run("loadgen", *words, *own)
    assert done.returncode == 5, done.stderr
    assert "NO RESULT" in done.stdout and "127.0.0.1:9" in done.stdout
    assert "run folder" not in done.stdout and "resume" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("no_session", "nothing_left")
def test_an_interrupted_sweep_of_a_split_node_keeps_everything_and_leaves_nothing_running(
    tmp_path: Path,
) -> None:
    """By SIGTERM, for which Ray has a handler of its own; of Ctrl-C see the tests of faults."""
    words = ["layout=1p1d_tp4_ep4", "--json", f"out={tmp_path}", "run=cut", *tries.BRACKETING]
    process = commands.begin("loadgen", "sweep", *words)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["event"] == "window_done":
            break
    process.terminate()
    rest = process.stdout.read().splitlines()
    assert process.wait(PATIENCE_S) == 130
    assert json.loads(rest[-1])["exit_code"] == 130
    folder = tmp_path / "cut"
    result = check_folder(folder)
    assert result["requests"]["by_status"].get("ok", 0) > 0
    assert not result["valid"] and not result["passed"]
    tells_of_both_sides(folder)
    assert (folder / "report.html").exists()
    shown = commands.run("analysis", "show", str(folder))
    assert shown.stdout.startswith("INTERRUPTED"), shown.stderr


def tells_of_both_sides(folder: Path) -> None:
    """The seconds of a split node's run: the prefill engine's beside the decode engine's."""
    server = load_run(folder).manifest["server"]
    assert server["shape"] == "1 x TP4/EP4 prefill + 1 x TP4/EP4 decode"
    (prefill,) = server["prefill"]
    seconds = load_run(folder).timeseries().to_pylist()
    assert {row["replica"] for row in seconds} == {f"prefill-{prefill}", *server["replica_nodes"]}
    computed = [row["prompt_tokens"] or 0 for row in seconds if row["replica"] == f"prefill-{prefill}"]
    assert max(computed) > 0


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
    for line in examples(loadgen.__main__.description(""))
    if shlex.split(line)[3] not in OF_A_RUN and "--sensitivity" not in line
]


@pytest.mark.parametrize("verb", loadgen.__main__.VERBS)
def test_a_verb_has_help_with_flags_and_examples_of_its_own(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    output = capsys.readouterr().out
    shown = examples(output.partition("examples:")[2])
    assert ended.value.code == 0 and shown
    assert all(f"{line} ".startswith(f"python -m loadgen {verb} ") for line in shown)
    foreign = [flag for flag, facts in grammar.FLAGS.items() if verb not in facts["verbs"]]
    assert not [flag for flag in foreign if f"  {flag}" in output.partition("options:")[2]]


SLOW = {"matplotlib", "pandas", "duckdb", "polars", "jinja2", "ray", "numba"}
OF_HELP = SLOW | {"numpy", "pyarrow", "rich", "analysis.results"}
OF_CONSOLE = OF_HELP | {"yaml", "loadgen", "analysis"}
HELP = "import {0}.__main__\ntry: {0}.__main__.main({1})\nexcept SystemExit: pass"
HELPS = [
    (HELP.format("loadgen", ["sweep", "--help"]), OF_HELP),
    (HELP.format("analysis", ["plan", "--help"]), OF_HELP),
    *((HELP.format("maxqps", [flag]), OF_CONSOLE) for flag in ("help", "--help", "--version")),
]


@pytest.mark.parametrize(("code", "heavy"), [*HELPS, ("import analysis", SLOW)])
def test_help_and_an_import_in_a_notebook_bring_nothing_heavy(code: str, heavy: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert not set(ran.stdout.splitlines()[-1].split()) & heavy


@pytest.mark.parametrize("line", DRY)
def test_an_example_of_loadgen_can_be_done(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text(TRACE)
    words = [STAND_INS.get(word, word) for word in shlex.split(line)[3:]]
    dry = [word for word in words if word != "--dry-run"] + ["--dry-run"]
    assert main(dry) == 0
    output = capsys.readouterr()
    assert output.out and not output.err
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


TABLE = pa.table(
    {"layout": ["a, b", None], "qps_per_node": [5.25, float("nan")], "ttft_p90_ms": [float("inf"), 1.0]}
)
TREE = {"cells": [{"qps": float("nan")}, {"qps": 5.25}]}


def test_an_answer_is_written_as_its_suffix_says(tmp_path: Path) -> None:
    for suffix in output.SUFFIXES:
        output.write(tmp_path / f"answer{suffix}", TABLE, TREE)
    assert pq.read_table(tmp_path / "answer.parquet").schema == TABLE.schema
    assert (tmp_path / "answer.csv").read_text().splitlines() == [
        '"layout","qps_per_node","ttft_p90_ms"',
        '"a, b",5.25,inf',
        ",,1",
    ]
    tree = json.loads((tmp_path / "answer.json").read_text())
    assert tree == {"event": "result", "cells": [{"qps": None}, {"qps": 5.25}]}
    assert len(list(tmp_path.iterdir())) == 3


FIRST_SCREEN = (ROOT / "README.md").read_text().partition("<!-- answer -->")[0]
SHELLS = ("bash", "fish", "zsh")


def readme_command(url: str) -> str:
    """The README's command for an endpoint, with its address and the program of this checkout."""
    (line,) = re.findall(r"^\.venv/bin/maxqps sweep http://HOST:8000.*$", FIRST_SCREEN, re.M)
    line = line.partition("#")[0].strip().replace("http://HOST:8000", url)
    return line.replace(".venv/bin/maxqps", f"{sys.executable} -m maxqps")


def typed(shell: str, line: str) -> "subprocess.CompletedProcess[str]":
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed here")
    return subprocess.run(
        [shell, "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=START_S + 300
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_takes_the_command_as_it_stands(shell: str, tmp_path: Path) -> None:
    """No word of it is a pattern, and the served model is read from the endpoint."""
    with serving(answer) as server:
        done = typed(shell, f"{readme_command(server.url)} --dry-run -o {tmp_path}")
    assert done.returncode == 0, done.stderr
    assert f'target.urls: ["{server.url}"]' in done.stdout
    assert 'model.served_name: "m"' in done.stdout


@pytest.mark.live
@pytest.mark.slow
def test_the_command_ends_with_a_verdict(tmp_path: Path) -> None:
    with serving(lambda body: answer(body, pause_s=0.001)) as server:
        done = typed(
            SHELLS[0], f"{readme_command(server.url)} {' '.join(WORDS['short'])} -o {tmp_path} run=mine"
        )
    assert done.returncode in (0, 6), done.stdout + done.stderr
    assert done.stdout.startswith("VALID  ") and "service: m on unknown hardware" in done.stdout
    assert "load after the start" in done.stderr
    assert (tmp_path / "mine" / "report.html").exists() and load_run(tmp_path / "mine").verdict
