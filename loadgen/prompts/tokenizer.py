"""The tokenizer of a model's folder: token ids of a text, and the positions where they begin."""

import importlib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from conf import ConfigError
from conf.io.one_line import reason
from conf.specs.experiment import Workload

Encoded = Sequence[tuple[int, int]]
"""Token ids, each with the position in the text where it begins."""
FILE = "tokenizer.json"
WORD = re.compile("[Ġ▁]([a-z]{2,})")
"""A word in a vocabulary: the space mark of byte-level BPE or of SentencePiece, then letters."""
LETTER = re.compile("[0-9A-Za-z]")


class Tokenizer:
    """The tokenizer.json of a model's folder. Raises ConfigError if that file or the package is missing."""

    def __init__(self, folder: Path) -> None:
        path = folder / FILE
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            raise ConfigError(
                f"reading {path} needs the package tokenizers, which comes with vLLM; use its environment, "
                "or install maxqps[tokenizer]"
            ) from error
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name a model's folder, with its {FILE}")
        if not path.is_file():
            raise ConfigError(f"{folder} has no {FILE}; name a model's folder")
        try:
            self._tokenizer = library.Tokenizer.from_file(str(path))
        except Exception as error:  # noqa: BLE001  the package raises nothing narrower
            raise ConfigError(f"{path} is no tokenizer: {reason(error)}") from error
        self.folder = folder
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        # Whatever stands there trims the spaces off the places of the tokens that they are part of.
        self._tokenizer.post_processor = library.processors.ByteLevel(trim_offsets=False)

    def encode(self, text: str) -> Encoded:
        """The tokens of a text, without begin and end marks."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [(number, start) for number, (start, _) in zip(encoding.ids, encoding.offsets, strict=True)]

    def pieces(self, text: str) -> list[tuple[int, int, str]]:
        """The same tokens with their positions and their texts, which together are the whole text."""
        encoded = self.encode(text)
        starts = [0, *(start for _, start in encoded[1:])]
        spans = zip(encoded, starts, [*starts[1:], len(text)], strict=False)
        return [(number, start, text[start:end]) for (number, _), start, end in spans]

    def words(self) -> list[tuple[int, str]]:
        """Tokens that are whole lower-case words after a space, by id."""
        found = [(WORD.fullmatch(entry), number) for entry, number in self.vocabulary.items()]
        return sorted((number, f" {match[1]}") for match, number in found if match)

    def letters(self) -> list[tuple[int, str]]:
        """Tokens that are one letter or digit, by id."""
        entries = self.vocabulary.items()
        return sorted((number, entry) for entry, number in entries if LETTER.fullmatch(entry))

    def refuse_beyond(self, vocab: int) -> None:
        """Raise ConfigError if it has ids that a model of `vocab` tokens lacks."""
        highest = max(self.vocabulary.values())
        if highest >= vocab:
            raise ConfigError(
                f"workload.tokenizer={self.folder} has token ids up to {highest} but model.vocab={vocab}; "
                "name the folder of this model, or set model.vocab"
            )

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by the token's text in the file."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))


def located(workload: Workload) -> Workload:
    """The workload with the absolute path of its tokenizer's folder, which load actors elsewhere need."""
    if not workload.tokenizer:
        return workload
    return replace(workload, tokenizer=str(Path(workload.tokenizer).expanduser().absolute()))
