"""`loadgen.prompts` with real text and real tokenizers: two trained here, and that of the tests' models."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from conf import load
from loadgen.prompts.bodies import Prompts
from loadgen.prompts.text_pool import Tokenizer, sentences
from loadgen.traffic.schedule import NS, planned
from loadgen.traffic.traffic import Traffic
from serve_apps.vllm_recipes.model_folder import write_folder
from tests.support.prompts.bodies import WORDS, shared_by_plan
from tests.support.prompts.chats import common

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

DOCS = Path(__file__).parents[2] / "docs"
KINDS = ("token_ids", "text", "chat")
VOCAB = 151936


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders by the kind of their tokenizer."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("bpe", "unigram", "letters")}
    texts = [path.read_text() for path in sorted(DOCS.glob("*.md"))] + list(islice(sentences(1), 3000))
    for name, trained in (("bpe", byte_pairs()), ("unigram", sentence_pieces())):
        tokenizer, trainer = trained
        tokenizer.train_from_iterator(texts, trainer)
        tokenizer.save(str(made[name] / "tokenizer.json"))
    write_folder(load(["model=tiny_qwen3_moe", "layout=dp1_tp1"]).model, made["letters"])
    return made


def byte_pairs() -> tuple[Any, Any]:
    """A byte-level BPE as of GPT-2, Llama 3 and Qwen, with a post-processor that trims spaces off."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder, tokenizer.post_processor = (
        decoders.ByteLevel(),
        processors.ByteLevel(trim_offsets=True),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=4000, initial_alphabet=alphabet, special_tokens=["<|end|>"], show_progress=False
    )


def sentence_pieces() -> tuple[Any, Any]:
    """Pieces with a mark in the place of the space, as of SentencePiece."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=4000, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )


def prompts(folder: Path, kind: str, *words: str) -> Prompts:
    experiment = load(["engine=vllm", f"workload.prompt={kind}", f"workload.tokenizer={folder}", *words])
    return Prompts(experiment.workload, "m", VOCAB, salt=3)


def text(body: bytes) -> str:
    tree = json.loads(body)
    return tree["prompt"] if "prompt" in tree else "".join(each["content"] for each in tree["messages"])


@pytest.mark.parametrize("name", ["bpe", "unigram", "letters"])
def test_a_prompt_has_the_asked_tokens_and_nearly_as_many_once_its_text_is_encoded(
    folders: dict[str, Path], name: str
) -> None:
    folder = folders[name]
    tokenizer = Tokenizer(folder)
    ids, plain = (prompts(folder, kind) for kind in ("token_ids", "text"))
    for seq, shared in ((0, 0), (1, 500), (2, 1000)):
        assert len(json.loads(ids.body(seq, 2000, 1, shared))["prompt"]) == 2000
        again = len(tokenizer.encode(text(plain.body(seq, 2000, 1, shared))))
        assert abs(again / 2000 - 1) < (0.001 if name != "unigram" else 0.01)
    assert {word[0] for _, word in tokenizer.words()} == {" "}


def test_the_ids_of_a_prompt_are_those_of_its_text(folders: dict[str, Path]) -> None:
    from tokenizers import Tokenizer as Package

    plain = Package.from_file(str(folders["bpe"] / "tokenizer.json"))
    ids, written = (prompts(folders["bpe"], kind).body(7, 900, 1, 300) for kind in ("token_ids", "text"))
    assert plain.decode(json.loads(ids)["prompt"]) == text(written)


@pytest.mark.parametrize("kind", KINDS)
def test_turns_begin_alike_as_planned_also_when_the_server_encodes_them(
    folders: dict[str, Path], kind: str
) -> None:
    made, tokenizer = prompts(folders["bpe"], kind, *WORDS), Tokenizer(folders["bpe"])
    workload = load(WORDS).workload
    turns = planned(
        Traffic(workload).draw(3.0, {"window": (0, 90 * NS)}, window_index=0, first_seq=0, seed=1)
    )
    bodies = [made.turn(turn) for turn in turns]
    if kind == "token_ids":
        lists = [json.loads(each)["prompt"] for each in bodies]
    else:
        lists = [[number for number, _ in tokenizer.encode(text(each))] for each in bodies]
    beyond = [
        common(lists[i], lists[j]) - shared_by_plan(turns[i], turns[j])
        for i in range(0, len(turns), 3)
        for j in range(i)
    ]
    # Of a thousand words one in a thousand names begins like another; a cut word may be another token.
    assert set(beyond) <= {-1, 0, 1} and beyond.count(0) > 0.97 * len(beyond)
    lengths = [len(each) - turn.input_tokens for each, turn in zip(lists, turns, strict=True)]
    assert set(lengths) <= ({0} if kind == "token_ids" else {-2, -1, 0})
