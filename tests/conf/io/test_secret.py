"""conf.io.secret: which key is refused, where it is taken out, and that it shows itself nowhere."""

import json
import pickle
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conf.io.secret import HIDDEN, Secret
from loadgen.__main__ import main
from loadgen.run.run_folder import Folder

KEYS = st.text("".join(map(chr, range(33, 127))), min_size=4, max_size=40)


@settings(deadline=None)
@given(KEYS, st.sampled_from(["said: ", ""]), st.integers(0, 2))
def test_every_way_to_write_a_key_is_found(value: str, before: str, again: int) -> None:
    ways = [
        value,
        quote(value, safe=""),
        quote(quote(value, safe=""), safe=""),
        quote_plus(value),
        escape(value),
        "".join(f"\\u{ord(one):04X}" for one in value),
        value.encode().hex("%").join(("%", "")),
        repr(value.encode())[2:-1],
    ]
    for written in ways:
        for _ in range(again):
            written = json.dumps(written)[1:-1]
        assert Secret(value).redact(f"{before}{written};") == f"{before}{HIDDEN};"


def test_a_key_shows_itself_nowhere() -> None:
    secret = Secret("sk-hush-hush")
    again = pickle.loads(pickle.dumps(secret))
    assert again == secret and again.authorization == "Bearer sk-hush-hush"
    assert "hush" not in f"{secret!r} {secret} {[secret]}"


def test_a_short_key_leaves_our_own_words_alone() -> None:
    tree: dict[str, Any] = {"verb": "sweep", "n": 1, "parts": ["sweep", ("sweep",)]}
    assert Secret("sweep").cleaned(tree) == tree
    assert Secret("sweep").redact("the key sweep is wrong") == f"the key {HIDDEN} is wrong"
    assert Secret("sk-sweeps").cleaned({"a": [1, ("is sk-sweeps",)]}) == {"a": [1, [f"is {HIDDEN}"]]}


BAD_KEYS = (
    *("", "sk-x\n", "\nsk-x", "sk-x\r\nX: y", "sk x", " sk-x", "sk-x\t"),
    *("sk-\x7f", "sk-\xe9", "sk-\u200b", "k" * 5000),
)


@pytest.mark.battery("wrong input")
@pytest.mark.parametrize(
    ("verb", "value"), [*(("sweep", value) for value in BAD_KEYS), ("probe", "sk-x\n"), ("compare", "sk-x\n")]
)
def test_a_key_that_no_header_carries_is_refused_unquoted(
    verb: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRETKEY", value)
    words = ["engine=external", "target.urls=[http://127.0.0.1:9]", "target.api_key_env=SECRETKEY"]
    if verb == "probe":
        words.append("rate_qps=1")
    if verb == "compare":
        words.append("b.target.urls=[http://127.0.0.1:10]")
    for flags in (["--dry-run"], []):
        assert main([verb, *words, f"out={tmp_path}/runs", *flags]) == 2
        output = capsys.readouterr()
        line = output.out + output.err
        assert line.startswith("error: ") and line.count("\n") == 1
        assert not value.strip() or value.strip() not in line
    assert not (tmp_path / "runs").exists()


def test_a_key_in_the_place_of_its_name_is_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["engine=external", "target.urls=[http://127.0.0.1:9]", "target.api_key_env=sk_secret_123"]
    assert main(["sweep", *words, "--dry-run"]) == 2
    assert "sk_secret" not in "".join(capsys.readouterr())


def test_a_folder_keeps_nothing_of_the_key(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.secret = Secret('sk-"/folder')
    said = {"reason": 'it said sk-"/folder', "nested": [{"text": ['Bearer sk-"/folder']}]}
    folder.event("fault", **said)
    folder.write_json("sweep.json", said)
    folder.write_text("traceback.txt", 'ValueError: sk-"/folder')
    folder.close()
    for path in tmp_path.iterdir():
        assert "/folder" not in path.read_text().replace("\\", "") and HIDDEN in path.read_text()
