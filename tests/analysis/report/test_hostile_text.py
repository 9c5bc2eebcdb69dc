"""A run folder whose every text is hostile, through analysis.__main__: nothing obeys what comes out."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import __main__ as command
from analysis.report.blocks import BROKEN
from tests.support.runs.golden import GOLDEN

TEXTS = {
    "clears the screen": "\x1b[2J\x1b[H",
    "sets the title": "\x1b]0;owned\x07",
    "C1": "\x9b2J\x85",
    "bell and backspace": "\x07\x08\x08",
    "right to left": "\u202egnp.exe",
    "forged lines": "\nVALID  99.00 QPS per node\r",
    "line separators": "\u2028VALID\u2029",
    "nulls": "\x00\x00",
    "half a pair": "\ud800",
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "mathematics": "$\\frac{$",
    "brackets of rich": "[red][/] {0} %s",
    "very long": "x" * 20_000,
}
VERBS = {
    "show": ["show", "RUN"],
    "compare": ["compare", "RUN", "OTHER"],
    "plan": ["plan", "RUN", "demand.peak_qps=10"],
    "report": ["report", "RUN", "--out", "OUT.html"],
    "export csv": ["export", "RUN", "--format", "csv", "--out", "OUT.csv"],
    "export jsonl": ["export", "RUN", "--format", "jsonl"],
}
DRAWN = ("markup", "mathematics", "very long")
ALONE = (*DRAWN, "half a pair", "nulls")
"""What may be refused by itself; the others, of which one hides none, come together."""
REPORTED = ("markup and mathematics", "very long", "all others at once")
"""A report takes seconds: what is not refused there comes together, for no figure may break."""
TOGETHER = {name: TEXTS[name] for name in ALONE} | {
    "markup and mathematics": TEXTS["markup"] + TEXTS["mathematics"],
    "all others at once": "".join(text for name, text in TEXTS.items() if name not in DRAWN),
}
CASES = {
    f"{name}-{verb}": pytest.param(name, words, marks=[pytest.mark.slow] if verb == "report" else [])
    for verb, words in VERBS.items()
    for name in (REPORTED if verb == "report" else [name for name in TOGETHER if name != REPORTED[0]])
}
NAME = re.compile(r"^(  name: )(.*)$", re.MULTILINE)
"""The name of each part of a configuration."""
JUDGED = (
    *("kind", "by", "at", "schema_version", "event", "verb"),
    *("verdict", "binding", "limit", "arrivals", "engine"),
)
"""Keys whose words are choices of ours: another one is an attack on the structure, not on the text."""


def spoilt(tree: Any, text: str) -> Any:
    """The tree with a text behind every text of it."""
    if isinstance(tree, str):
        return f"{tree}{text}"
    if isinstance(tree, dict):
        return {key: value if key in JUDGED else spoilt(value, text) for key, value in tree.items()}
    return [spoilt(value, text) for value in tree] if isinstance(tree, list) else tree


def hostile(folder: Path, text: str) -> Path:
    """The golden run with `text` in everything that its JSON files and names say."""
    run = Path(shutil.copytree(GOLDEN, folder))
    for name in ("manifest.json", "sweep.json"):
        (run / name).write_text(json.dumps(spoilt(json.loads((run / name).read_text()), text)))
    lines = (run / "events.jsonl").read_text().splitlines()
    (run / "events.jsonl").write_text(
        "".join(json.dumps(spoilt(json.loads(line), text)) + "\n" for line in lines)
    )
    config, result = NAME.subn(
        lambda name: name[1] + json.dumps(name[2] + text), (run / "config.yaml").read_text()
    )
    assert result > 5
    (run / "config.yaml").write_text(config)
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each text, which no verb changes."""
    folder = tmp_path_factory.mktemp("hostile")
    return {name: hostile(folder / str(place), text) for place, (name, text) in enumerate(TOGETHER.items())}


def lines(said: str) -> Iterator[str]:
    yield from said.removesuffix("\n").split("\n")


@pytest.mark.battery("hostile folder")
@pytest.mark.parametrize(("name", "words"), CASES.values(), ids=CASES)
def test_no_text_of_a_folder_reaches_a_terminal(
    name: str, words: list[str], runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = runs[name], tmp_path / "out"
    places = {"RUN": str(run), "OTHER": str(GOLDEN), "OUT.html": f"{out}.html", "OUT.csv": f"{out}.csv"}
    code = command.main([places.get(word, word) for word in words])
    output = capsys.readouterr()
    assert code in range(7), output.err
    assert all(line.isprintable() for line in (*lines(output.out), *lines(output.err)))
    assert not any(line.startswith("VALID  99") for line in lines(output.out))
    assert "Traceback" not in output.err
    assert len(output.err) < 5000
    if Path(f"{out}.html").exists():
        page = Path(f"{out}.html").read_text(errors="surrogateescape")
        assert "<script>alert(1)" not in page and "<img src=x" not in page
        assert BROKEN not in page or name == "all others at once"  # its config.yaml is no YAML
        assert re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", page) is None
