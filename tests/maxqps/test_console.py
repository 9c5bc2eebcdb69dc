"""maxqps/__main__.py: the verbs of all rooms under one name, and what a shell is offered."""

import json
import os
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest
import yaml

from maxqps import __main__ as console


def test_its_verbs_are_those_of_the_rooms() -> None:
    for room, grammar in (("loadgen", "loadgen.cli.arguments"), ("analysis", "analysis.__main__")):
        assert console.ROOMS[room] == tuple(import_module(grammar).VERBS)
    (verb, *_) = import_module("cluster.__main__").parser("")._get_positional_actions()
    assert console.ROOMS["cluster"] == verb.choices


def test_a_verb_runs_in_its_room_and_two_rooms_have_long_forms(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["show", "/nowhere"]) == 2
    assert "/nowhere" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        console.main(["analysis", "compare", "--help"])
    assert ended.value.code == 0 and "analysis compare" in capsys.readouterr().out


def test_help_of_a_verb_is_that_of_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["help"]) == 0 and "maxqps help VERB" in capsys.readouterr().out
    for words in (["help", "probe"], ["probe", "--help"]):
        with pytest.raises(SystemExit) as ended:
            console.main(words)
        assert ended.value.code == 0 and "loadgen probe rate_qps=" in capsys.readouterr().out
    assert console.main(["help", "swep"]) == 2


@pytest.mark.parametrize("room", console.ROOMS)
def test_every_room_prints_the_same_versions(room: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["--version"]) == 0
    expected = capsys.readouterr().out
    assert f"maxqps {metadata.version('maxqps')}" in expected and f"ray {metadata.version('ray')}" in expected
    with pytest.raises(SystemExit) as ended:
        console.main([room, "--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == expected


def test_the_schema_of_a_configuration_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Experiment"


def test_an_unknown_verb_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert console.main(["swep"]) == 2
    assert capsys.readouterr().err == "error: unknown verb 'swep'; did you mean 'sweep'?\n"


BREAKS = " \t\n\"'><=;|&(:"
"""Letters at which bash breaks words; it takes only what follows the last one."""
OFFERS = yaml.safe_load((Path(__file__).parents[1] / "data" / "offered_words.yaml").read_text())


def offered(folder: Path, line: str) -> list[str]:
    """What is offered as the next word of a line, asked as bash asks."""
    of_bash = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(folder / "answer"),
        "_ARGCOMPLETE_COMP_WORDBREAKS": BREAKS,
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-m", "maxqps"]
    subprocess.run(command, env={**os.environ, **of_bash}, cwd=folder, check=True, timeout=120)
    return [word.strip() for word in (folder / "answer").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("line", "wanted"), OFFERS.items())
def test_a_shell_is_offered_the_next_word_and_no_flag_of_another_verb(
    line: str, wanted: str, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    words = offered(tmp_path, line)
    assert wanted in words and ("sweep --" not in line or "--require" not in words)
