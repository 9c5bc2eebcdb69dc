"""Stands in for the package `tokenizers`, which this environment lacks: whole words and else single letters.

Has what `loadgen.prompts.text_pool` uses, with the shape of a byte-level BPE: a word's token has its space.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from loadgen.prompts.text_pool import PATTERNS, WORDS

SPLIT = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]|\s")
VOWELS, CONSONANTS = "aeiou", "bdfgklmnprstvz"
processors = SimpleNamespace(ByteLevel=lambda trim_offsets: None)


def made_up() -> Iterator[str]:
    """Words that the text does not have."""
    for letters in product(CONSONANTS, VOWELS, CONSONANTS, VOWELS, CONSONANTS, VOWELS):
        yield "".join(letters)


def write(folder: Path, words: int = 5_000) -> Path:
    """A folder whose tokenizer has letters, the words of our text and so many of nobody's."""
    known = sorted(set(re.findall("[A-Za-z]+", " ".join([*WORDS.values(), *PATTERNS, "User", "Character"]))))
    known += [word.capitalize() for word in known]
    entries = [chr(code) for code in range(32, 127)] + ["\n"]
    entries += [space + word for word in known for space in (" ", "")] if words else []
    entries += [f" {word}" for word in islice(made_up(), words)]
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(list(dict.fromkeys(entries))))
    return folder


class Tokenizer:
    """A vocabulary in the order of its ids."""

    def __init__(self, entries: list[str]) -> None:
        self._entries = entries
        self._ids = {entry: number for number, entry in enumerate(entries)}
        self.post_processor: Any = "trims spaces off"

    @classmethod
    def from_file(cls, path: str) -> Self:
        entries = json.loads(Path(path).read_text())
        if not isinstance(entries, list):
            raise Exception("data did not match any variant\nof untagged enum ModelWrapper")
        return cls(entries)

    def no_truncation(self) -> None: ...

    def no_padding(self) -> None: ...

    def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
        assert not add_special_tokens and self.post_processor is None
        ids, offsets = [], []
        for match in SPLIT.finditer(text):
            whole = match.group() in self._ids
            for piece in [match.group()] if whole else match.group():
                start = offsets[-1][1] if offsets else 0
                ids.append(self._ids[piece])
                offsets.append((start, start + len(piece)))
        return SimpleNamespace(ids=ids, offsets=offsets)

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        assert with_added_tokens
        return {entry.replace(" ", "Ġ"): number for entry, number in self._ids.items()}

    def decode(self, ids: list[int]) -> str:
        return "".join(self._entries[number] for number in ids)
