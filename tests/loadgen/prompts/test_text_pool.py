"""loadgen/prompts/text_pool.py: planned lengths and prefixes of real text, however it is sent; refusals."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.results import summary
from conf import ConfigError, Experiment, load
from loadgen.__main__ import main
from loadgen.cli.words import experiment_of
from loadgen.prompts import text_pool
from loadgen.prompts.bodies import Prompts
from loadgen.prompts.text_pool import sentences, talk
from loadgen.run import resumption
from loadgen.run.run_folder import read_files
from loadgen.studies import calibration_probes, published_ladder
from loadgen.traffic.prefix_sharing import shared_prefixes
from loadgen.traffic.schedule import Planned, planned
from tests.support.prompts import stub_tokenizers
from tests.support.prompts.bodies import WORDS, bodies, shared_by_plan
from tests.support.prompts.chats import common
from tests.support.prompts.schedules import drawn

KINDS = ("token_ids", "text", "chat")
VOCAB = 151936
POOL = 6000
"""A text that begins anew within a prompt."""


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "tokenizers", stub_tokenizers)
        patched.setattr(text_pool, "POOL_TOKENS", POOL)
        patched.setattr(text_pool, "AT_ONCE", 50)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_tokenizers.write(tmp_path_factory.mktemp("model"))


@cache
def opened(folder: Path) -> stub_tokenizers.Tokenizer:
    result = stub_tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    result.post_processor = None
    return result


def asked(folder: Path, *words: str) -> Experiment:
    """Of an engine that counts tokens."""
    return load(["engine=vllm", "layout=dp1_tp8_ep8", *words, f"workload.tokenizer={folder}"])


@cache
def prompts_of(folder: Path, kind: str, *words: str, salt: int = 3) -> Prompts:
    return Prompts(asked(folder, *words, f"workload.prompt={kind}").workload, "m", VOCAB, salt)


def text(body: bytes, folder: Path) -> str:
    """The prompt of a body as text, whatever way it is sent."""
    tree = json.loads(body)
    if "messages" in tree:
        return "".join(message["content"] for message in tree["messages"])
    return tree["prompt"] if isinstance(tree["prompt"], str) else opened(folder).decode(tree["prompt"])


def encoded(body: bytes, folder: Path) -> list[int]:
    """The tokens that a server counts."""
    tree = json.loads(body)
    if isinstance(tree.get("prompt"), list):
        return list(tree["prompt"])
    return list(opened(folder).encode(text(body, folder), add_special_tokens=False).ids)


@cache
def said(folder: Path) -> list[Planned]:
    return planned(drawn(asked(folder, *WORDS).workload, 3.0, 150))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_two_turns_begin_alike_as_far_as_the_plan_says_and_no_further(folder: Path, kind: str) -> None:
    prompts, turns = prompts_of(folder, kind, *WORDS), said(folder)
    lists = [encoded(prompts.turn(turn), folder) for turn in turns]
    lengths = [len(each) - turn.input_tokens for each, turn in zip(lists, turns, strict=True)]
    # Where a level ends within a word, a server that encodes the text may make one token of two.
    assert set(lengths) <= ({0} if kind == "token_ids" else {-1, 0}) and lengths.count(0) > 0.8 * len(turns)
    names = set()
    for i in range(0, len(turns), 9):
        for j in range(i):
            beyond = common(lists[i], lists[j]) - shared_by_plan(turns[i], turns[j])
            assert beyond == 0 or (kind != "token_ids" and beyond == -1)
            names.add((turns[i].character == turns[j].character, turns[i].session == turns[j].session))
    assert names == {(False, False), (True, False), (True, True)}


@pytest.mark.parametrize(
    "words",
    [
        ("workload=chat_sessions", "workload.sessions=6", "workload.prefix_hit=.1"),
        ("workload=chat_5600_140_varied", "workload.prefix_hit=.3", "workload.sessions=3"),
    ],
)
def test_what_requests_of_simple_workloads_share_is_as_planned(folder: Path, words: tuple[str, ...]) -> None:
    experiment = asked(folder, *words)
    schedule = drawn(experiment.workload, 2.0, 10)
    shared, prompts = shared_prefixes(schedule, experiment.workload), bodies(experiment, schedule)
    assert shared is not None and [len(each) for each in prompts] == schedule.input_tokens.tolist()
    for i in range(len(prompts)):
        for j in range(i):
            same = shared.session[i] == shared.session[j]
            ends = shared.of_session if same else shared.everyone
            assert common(prompts[i], prompts[j]) == min(ends[i], ends[j])


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**37), st.integers(1, 5 * POOL), st.data())
def test_any_request_has_the_asked_tokens_in_text_and_in_ids(
    folder: Path, seq: int, count: int, data: st.DataObject
) -> None:
    shared = data.draw(st.integers(0, count - 1))
    ids, plain = (prompts_of(folder, kind).body(seq, count, 7, shared) for kind in KINDS[:2])
    assert len(json.loads(ids)["prompt"]) == count
    assert text(ids, folder) == text(plain, folder)


def test_a_turn_says_the_same_however_it_is_sent(folder: Path) -> None:
    turn = said(folder)[-1]
    ids, plain, chat = (prompts_of(folder, kind, *WORDS).turn(turn) for kind in KINDS)
    assert text(ids, folder) == text(plain, folder) == text(chat, folder)
    messages = json.loads(chat)["messages"]
    assert [message["role"] for message in messages] == ["system", "user"]
    kept = prompts_of(folder, "chat", *WORDS, salt=3)
    assert kept.turn(turn) == chat != prompts_of(folder, "chat", *WORDS, salt=4).turn(turn)


def test_the_template_gives_its_fixed_text_and_the_history_its_lines(folder: Path) -> None:
    turn = max(said(folder), key=lambda turn: turn.input_tokens)
    messages = json.loads(prompts_of(folder, "chat", *WORDS).turn(turn))["messages"]
    system, character, persona, rest = messages[0]["content"].split("\n")
    assert rest == "" and system.startswith(" ")
    for part in (character, persona):  # the words of its name, then what the template says, then the text
        name, _, sentence = part.partition(": ")
        assert len(name.split()) == 8 and sentence[0].isupper() or sentence[0] == '"'
    cut, *lines = messages[1]["content"].split("\n")
    assert len(cut.split()) == 8
    assert {line.partition(":")[0] for line in lines[:-1]} == {"User", "Character"}


def test_a_conversation_without_a_template_is_one_message_of_bare_text(folder: Path) -> None:
    turn = said(folder)[0]
    plain = prompts_of(folder, "chat", *WORDS, "workload.conversations.template=[]")
    (message,) = json.loads(plain.turn(turn))["messages"]
    assert message["role"] == "user" and "User:" not in message["content"]
    assert "\n" in message["content"]
    assert len(encoded(plain.turn(turn), folder)) == turn.input_tokens


@pytest.mark.parametrize("sizes", [(0, 9, 8, 17), (1, 10, 9, 20), (0, 20, 10, 40), (3, 11, 8, 28)])
def test_levels_too_short_for_name_and_template_are_as_long_as_planned(
    folder: Path, sizes: tuple[int, int, int, int]
) -> None:
    *levels, count = sizes
    prompts = prompts_of(folder, "token_ids", *WORDS)
    before: list[int] = []
    for tokens in range(count, count + 30):
        turn = Planned(0, 0, "window", 0, tokens, 1, levels[0], session=2, character=1, history_cut=3)
        turn.character_tokens, turn.persona_tokens = levels[1:]
        ids = json.loads(prompts.turn(turn))["prompt"]
        assert len(ids) == tokens and ids[: len(before)] == before
        before = ids


def test_a_tokenizer_of_few_words_names_by_letters_and_one_of_none_is_refused(tmp_path: Path) -> None:
    few = stub_tokenizers.write(tmp_path / "few", words=0)
    ids = [json.loads(prompts_of(few, "token_ids").body(seq, 20, 1))["prompt"] for seq in range(200)]
    assert len({tuple(each[:8]) for each in ids}) == 200
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "tokenizer.json").write_text(json.dumps(["a", *map(chr, range(32, 65))]))
    with pytest.raises(ConfigError, match="has only 11 words and letters"):
        text_pool.refuse(asked(tmp_path / "none").workload, VOCAB)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("workload.tokenizer={0}/nothing", "there is no folder {0}/nothing; name a model's folder"),
        ("workload.tokenizer={0}", "{0} has no tokenizer.json; name a model's folder"),
        (
            "workload.tokenizer={0}/broken",
            "{0}/broken/tokenizer.json is no tokenizer: data did not match any",
        ),
        ("workload.tokenizer={0}/large model.vocab=2000", "token ids up to "),
    ],
)
def test_a_folder_that_cannot_be_used_is_refused_in_a_line_before_anything_starts(
    word: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{}")
    stub_tokenizers.write(tmp_path / "large")
    assert main(["sweep", *word.format(tmp_path).split(), f"out={tmp_path}/runs"]) == summary.EXIT_USAGE
    output = capsys.readouterr().err
    assert says.format(tmp_path) in output and output.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_without_the_package_the_remedy_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    words = ["probe", "rate_qps=1", f"workload.tokenizer={folder}/."]
    assert main(words) == summary.EXIT_USAGE
    assert "use its environment, or install maxqps[tokenizer]" in capsys.readouterr().err


def test_a_template_that_wants_what_no_level_has_is_refused(folder: Path) -> None:
    parts: Any = load(["workload=character"]).workload.conversations
    for place, content in ((1, "{{ character.age }}"), (3, "{{ item.mood }}")):
        template = list(parts.template)
        template[place] = replace(template[place], content=content)
        experiment = asked(folder, "workload=character").workload
        experiment = replace(experiment, conversations=replace(experiment.conversations, template=template))
        with pytest.raises(ConfigError, match=f"template: part {template[place].name}: .*no attribute"):
            text_pool.refuse(experiment, VOCAB)


def test_other_nodes_are_told_the_whole_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    result = experiment_of("sweep", [f"workload.tokenizer={folder.name}"], None)
    assert result.workload.tokenizer == str(folder)


def test_another_tokenizer_than_the_one_of_the_run_ends_a_resume(tmp_path: Path) -> None:
    folder = stub_tokenizers.write(tmp_path / "model")
    config = asked(folder)
    files = read_files(config)
    assert files == {"tokenizer_sha256": folder / "tokenizer.json"}
    known = sha256((folder / "tokenizer.json").read_bytes()).hexdigest()
    run: Any = SimpleNamespace(
        path=tmp_path, config=config, manifest={"verb": "sweep", "tokenizer_sha256": known}
    )
    with pytest.raises(AttributeError):  # it goes on to the events, which this one lacks
        resumption.continued(run)
    stub_tokenizers.write(tmp_path / "model", words=9)
    with pytest.raises(ConfigError, match="tokenizer.json is not what it was when .* began"):
        resumption.continued(run)


def test_recipe_and_progressive_send_what_was_asked(folder: Path) -> None:
    experiment = asked(folder)
    assert calibration_probes.check_experiment(experiment).workload.tokenizer == str(folder)
    assert published_ladder.workload(experiment).tokenizer == str(folder)
    assert experiment_of("recipe", [f"workload.tokenizer={folder}"], None).workload.tokenizer == str(folder)


def test_the_same_seed_says_the_same_in_plain_letters() -> None:
    first, again = ("".join(islice(sentences(seed), 300)) for seed in (5, 5))
    assert first == again != "".join(islice(sentences(6), 300))
    assert first.isascii() and first.isprintable() and "{" not in first
    lines = list(islice(talk(5, (30, 140), lambda author, text: f"{author}: {text}"), 200))
    lengths = [sum(map(len, lines[place::2])) / 100 for place in (0, 1)]
    assert lines[0].startswith("User: ") and lines[1].startswith("Character: ")
    assert lengths == [pytest.approx(30 * 4.5, rel=0.35), pytest.approx(140 * 4.5, rel=0.2)]
