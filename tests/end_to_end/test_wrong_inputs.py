"""Wrong inputs to loadgen, analysis, cluster and serve_apps: each is answered in one line that helps."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from analysis.__main__ import main as analysis
from cluster.__main__ import main as cluster
from conf import ConfigError, load
from conf.io.one_line import nearest
from conf.keys import fields_of, keys
from conf.specs import experiment
from conf.typed import fits, wrong
from loadgen.__main__ import main as loadgen
from loadgen.cli import machine
from serve_apps.__main__ import main as serve_apps
from tests.support.runs.golden import GOLDEN
from tests.support.words.words import HOSTS, IMAGE, KUBERAY

Main = Callable[[Sequence[str]], int]
ROOMS = {"loadgen": loadgen, "analysis": analysis, "cluster": cluster, "serve_apps": serve_apps}
FOREIGN = ("full_key", "object_type", "Errno", "subclass", "AnyNode", "ListConfig", "of type", "NoneType")
FOREIGN += ("Traceback", "invalid choice", "unrecognized arguments")
"""Words of the libraries beneath, which no user should have to know."""
REFUSED = yaml.safe_load((Path(__file__).parents[1] / "data" / "refused_commands.yaml").read_text())
STAND_INS = {
    "EXTERNAL": ["engine=external", "target.urls=[http://127.0.0.1:1]"],
    "GOLDEN": [str(GOLDEN)],
    "KUBERAY": KUBERAY,
    "HOSTS": [HOSTS],
    "IMAGE": [IMAGE],
}


def words_of(typed: str) -> list[str]:
    return [word for each in shlex.split(typed) for word in STAND_INS.get(each, [each])]


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in REFUSED["files"].items():
        (tmp_path / name).write_text(text)
    return tmp_path


def refused(main: Main, argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is on stderr of a command that ends with exit code 2: a line, or several on a whole file."""
    try:
        code = main(argv)
    except SystemExit as ended:
        code = int(ended.code or 0)
    output = capsys.readouterr()
    assert (code, output.out) == (2, ""), output
    lines = output.err.splitlines()
    assert len(lines) == 1 or "--config" in argv, lines
    for line in lines:
        assert line.startswith("error: ") and not [word for word in FOREIGN if word in line], line
        assert "hush" not in line
    return output.err


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("typed", REFUSED["runs"])
def test_a_run_and_its_dry_run_refuse_alike(
    typed: str, somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = words_of(typed)
    line = refused(loadgen, argv, capsys)
    assert REFUSED["runs"][typed] in line
    assert refused(loadgen, [*argv, "--dry-run"], capsys) == line
    assert {file.name for file in somewhere.iterdir()} == set(REFUSED["files"])


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize("typed", REFUSED["commands"])
def test_every_command_refuses_in_one_line(
    typed: str, somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room, *argv = words_of(typed)
    assert REFUSED["commands"][typed] in refused(ROOMS[room], argv, capsys)
    assert {file.name for file in somewhere.iterdir()} == set(REFUSED["files"])


def test_every_key_says_in_our_words_what_it_cannot_be() -> None:
    root = {**(fields_of(experiment.Experiment) or {}), "engine": experiment.EmulatedEngine}
    for key, kind in keys(root):
        for value in ("soon", [[{}]], {"nowhere": 1}, None, 1.5, True):
            if not fits(kind, value):
                line = wrong(root, key, value)
                assert key in line and "\n" not in line and not [word for word in FOREIGN if word in line]


def test_a_value_that_may_be_secret_is_not_shown() -> None:
    root = {"target": {"api_key_env": str}, "engine": {"env": dict[str, int], "args": {"api_key": float}}}
    for key in ("target.api_key_env", "engine.env.WHAT", "engine.args.api_key"):
        assert "hush" not in wrong(root, key, ["hush"]) + wrong(root, key, "hush")


def test_everything_that_is_wrong_is_said_at_once(
    somewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster.nodes=many", "nods=4", "search=quik", "fleet.actors=0", "slo.ttft_p90_ms"]
    assert loadgen(["sweep", *words, "seed=1", "seed=2", "--dry-run"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6 and all(line.startswith("error: ") for line in lines)
    for part in ("whole number", "'cluster.nodes=4'", "'quick'", "must be 1 to", "key=value", "given twice"):
        assert sum(part in line for line in lines) == 1, part


def test_the_nearest_names_come_first_and_what_is_far_is_left_out() -> None:
    assert nearest("layot", ["slo", "layout", "out"]) == ["layout"]
    assert nearest("RUNS", ["seed", "run", "runs"])[0] == "runs"
    assert nearest("xyz", ["seed", "run"]) == []


def test_load_actors_may_share_cores_up_to_a_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    machine.refuse(load([f"out={tmp_path}", "fleet.actors=32"]))
    with pytest.raises(ConfigError, match="lower it to at most 32"):
        machine.refuse(load([f"out={tmp_path}", "fleet.actors=33"]))
