"""Where the tokens of prompts come from: random ids, or sentences that a model's tokenizer encodes once.

A pool is one long string in which every token's place is known; a prompt is cut from it between tokens.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from conf import ConfigError
from conf.io.one_line import reason
from conf.specs.experiment import Workload
from conf.specs.workload import Conversations, PromptPart
from loadgen.prompts.templates import Encoded, PromptTemplate, parts_of
from loadgen.traffic.schedule import UNIQUE_TOKENS

POOL_TOKENS = 65_536
TokenBytes = bytes | memoryview


class TokenPool:
    """Tokens one after the other, repeated without end; a slice begins with one of the tokens `openings`.

    `written` holds all of them, `places` the position of each, `gap` the bytes between two.
    """

    def __init__(self, written: bytes, places: Sequence[int], openings: Sequence[int], gap: int) -> None:
        self._once, self._places, self._openings, self._gap = written, places, openings, gap
        self._twice = written * 2

    def slice(self, number: int, tokens: int) -> memoryview:
        """`tokens` tokens from the opening that `number` selects, as a view: a copy would cost time."""
        first = self._openings[number % len(self._openings)]
        last = first + tokens
        size = len(self._places)
        pool = self._twice if last <= 2 * size else self._once * -(-last // size)
        return memoryview(pool)[self._place(first) : max(self._place(first), self._place(last) - self._gap)]

    def _place(self, token: int) -> int:
        times, rest = divmod(token, len(self._places))
        return times * len(self._once) + self._places[rest]


@dataclass(frozen=True, slots=True)
class PromptLevel:
    """Writes one level of a prompt: its name, `head`, text, `tail`. In a chat `role` says it."""

    pool: TokenPool
    role: str = "user"
    head: Sequence[bytes] = ()
    tail: Sequence[bytes] = ()

    def pieces(self, name: Sequence[bytes], number: int, tokens: int) -> list[TokenBytes]:
        """`tokens` tokens, the name first; without the tail if there is no room for it."""
        begin = [*name, *self.head][:tokens]
        end = self.tail if len(begin) + len(self.tail) <= tokens else ()
        room = tokens - len(begin) - len(end)
        return [*begin, self.pool.slice(number, room), *end] if room else [*begin, *end]


@dataclass(frozen=True, slots=True)
class PromptSource:
    """The tokens of all prompts of a run, and the words that spell a number together with `salt`.

    `levels` are those of a conversation: system prompt, character, persona and history.
    """

    separator: bytes
    words: Sequence[bytes]
    salt: int
    pool: TokenPool
    levels: Sequence[PromptLevel] = ()

    def name(self, number: int) -> list[bytes]:
        """`UNIQUE_TOKENS` tokens that spell salt and number in base len(words)."""
        base, words = len(self.words), self.words
        rest, name = (self.salt << 40) + number, []
        for _ in range(UNIQUE_TOKENS):
            rest, digit = divmod(rest, base)
            name.append(words[digit])
        return name


def synthetic(workload: Workload, vocab: int, salt: int) -> PromptSource:
    """Random token ids, or as many words of digits, from those with the most digits (10000 to 99999 of
    151936).
    """
    digits = len(str(vocab - 1)) - (1 if vocab <= 2 * 10 ** (len(str(vocab - 1)) - 1) else 0)
    low, high = 10 ** (digits - 1), min(10**digits, vocab)
    rng = np.random.default_rng(salt)
    ids = rng.integers(low, high, size=2 * POOL_TOKENS)
    separator = b"," if workload.prompt == "token_ids" else b" "
    table = np.full((len(ids), digits + 1), ord(separator), np.uint8)
    table[:, :-1] = ids[:, None] // 10 ** np.arange(digits)[::-1] % 10 + ord("0")
    written = table.tobytes()
    pool = TokenPool(written, range(0, len(written), digits + 1), range(POOL_TOKENS), len(separator))
    return PromptSource(
        separator, _words(low, high), int(rng.integers(0, 2**31)), pool, 4 * (PromptLevel(pool),)
    )


@cache
def _words(low: int, high: int) -> list[bytes]:
    """The numbers from `low` to below `high` as text."""
    return [b"%d" % i for i in range(low, high)]


# A model's tokenizer.

TOKENIZER = "tokenizer.json"
WORD = re.compile("[Ġ▁]([a-z]{2,})")
"""A word in a vocabulary: the space mark of byte-level BPE or of SentencePiece, then letters."""
LETTER = re.compile("[0-9A-Za-z]")


class Tokenizer:
    """The tokenizer.json of a model's folder. Raises ConfigError if that file or the package is missing."""

    def __init__(self, folder: Path) -> None:
        path = folder / TOKENIZER
        try:
            library = importlib.import_module("tokenizers")
        except ImportError as error:
            raise ConfigError(
                f"reading {path} needs the package tokenizers, which comes with vLLM; use its environment, "
                "or install maxqps[tokenizer]"
            ) from error
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder}; name a model's folder, with its {TOKENIZER}")
        if not path.is_file():
            raise ConfigError(f"{folder} has no {TOKENIZER}; name a model's folder")
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
        matches = [(WORD.fullmatch(entry), number) for entry, number in self.vocabulary.items()]
        return sorted((number, f" {match[1]}") for match, number in matches if match)

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


# Real text.

GRAMMAR = json.loads(Path(__file__).with_name("grammar.json").read_text())
PATTERNS: list[str] = GRAMMAR["patterns"]
WORDS: dict[str, str] = GRAMMAR["words"]
"""Choices by the name of a field: words, or groups of words separated by bars."""
FIELD = re.compile(r"{(\w+)}")
CHOICES = {name: words.split("|" if "|" in words else None) for name, words in WORDS.items()}
DRAWN = 4096
"""Random numbers per draw."""
LETTERS_PER_TOKEN = 4.5
"""Letters per English token with today's tokenizers; only the length of dialogue lines uses it."""


def sentences(seed: int) -> Iterator[str]:
    """Endless sentences, each after a space; `seed` decides them all."""
    drawn = _numbers(seed)

    def choice(field: re.Match[str]) -> str:
        choices = CHOICES[field[1]]
        return choices[next(drawn) % len(choices)]

    while True:
        written = FIELD.sub(choice, PATTERNS[next(drawn) % len(PATTERNS)])
        yield f" {written[0].upper()}{written[1:]}"


def _numbers(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(0, 2**31, size=DRAWN).tolist()


def talk(seed: int, mean_tokens: tuple[int, int], line: Callable[[str, str], str]) -> Iterator[str]:
    """Endless lines of user and character in turn, about `mean_tokens` long, each formatted by `line`."""
    text = sentences(seed)
    for author, tokens in cycle(zip(("User", "Character"), mean_tokens, strict=True)):
        sentence = next(text)
        while len(sentence) < LETTERS_PER_TOKEN * tokens:
            sentence += next(text)
        yield line(author, sentence.strip())


AT_ONCE = 500
"""Sentences or lines per encoding call."""
SALT_BITS = 62
LEAST_WORDS = 2**9
"""Eight of this many words spell the 40 bits of a number and 32 bits of the salt; more spell more of it."""
LEAST_LETTERS = 2**5
"""Eight of this many letters still spell all numbers of a run."""
PLAIN = ("system", "character", "persona")
"""Parts that are one text each."""
TEXT = "\ue000"
"""Stands for a level's text while its template is filled: a private-use letter that no template has."""


def source(workload: Workload, vocab: int, salt: int) -> PromptSource:
    """Real text for the prompts of a run; `salt` decides all of it. Raises ConfigError as `refuse` does."""
    tokenizer, as_ids = Tokenizer(Path(workload.tokenizer)), workload.prompt == "token_ids"
    tokenizer.refuse_beyond(vocab)
    rng = np.random.default_rng(salt)
    seed, own = int(rng.integers(0, 2**31)), int(rng.integers(0, 2**SALT_BITS))
    pool = _pool(tokenizer, sentences(seed), as_ids)
    levels = _levels(tokenizer, workload.conversations, pool, seed, as_ids)
    words = _names(tokenizer, as_ids)
    shuffled = [words[i] for i in rng.permutation(len(words)).tolist()]
    return PromptSource(b"," if as_ids else b"", shuffled, own, pool, levels)


def refuse(workload: Workload, vocab: int) -> None:
    """Raise ConfigError for a workload that `source` would refuse."""
    if workload.tokenizer:
        _try(workload.tokenizer, workload.prompt == "token_ids", vocab)
    if workload.tokenizer and (chats := workload.conversations):
        parts = {part.name: part for part in parts_of(chats)}
        for name in PLAIN:
            _around(parts[name])
        _line(parts["history"])("", "")


@lru_cache(maxsize=8)
def _try(folder: str, as_ids: bool, vocab: int) -> None:
    """Check a tokenizer without keeping it: a large one takes a second to read, and tens of MB."""
    tokenizer = Tokenizer(Path(folder))
    tokenizer.refuse_beyond(vocab)
    _names(tokenizer, as_ids)


def _pool(tokenizer: Tokenizer, lines: Iterator[str], as_ids: bool) -> TokenPool:
    """Whole lines of at most `POOL_TOKENS` tokens, so that every slice can begin at a line."""
    tokens: list[bytes] = []
    openings: list[int] = []
    while len(tokens) < POOL_TOKENS:
        text, begins = "", set()
        for line in islice(lines, AT_ONCE):
            begins.add(len(text))
            text += line
        pieces = tokenizer.pieces(text)
        openings += [len(tokens) + i for i, (_, start, _) in enumerate(pieces) if start in begins]
        tokens += _tokens(pieces, as_ids)
    gap = int(as_ids)
    last = max((i for i in openings if 0 < i <= POOL_TOKENS), default=POOL_TOKENS)
    del tokens[last:]
    ends = np.cumsum([len(token) + gap for token in tokens]).tolist()
    written = b"".join(token + b"," for token in tokens) if as_ids else b"".join(tokens)
    return TokenPool(written, [0, *ends[:-1]], [i for i in openings if i < last], gap)


def _tokens(pieces: Sequence[tuple[int, int, str]], as_ids: bool) -> list[bytes]:
    if as_ids:
        return [b"%d" % number for number, _, _ in pieces]
    return [json.dumps(piece)[1:-1].encode() for _, _, piece in pieces]


def _names(tokenizer: Tokenizer, as_ids: bool) -> list[bytes]:
    """Tokens that name prompts: whole words, or letters where a tokenizer has few words."""
    words = tokenizer.words()
    if not as_ids:
        whole = {(number, piece) for number, _, piece in tokenizer.pieces("".join(word for _, word in words))}
        words = [word for word in words if word in whole]
    if len(words) < LEAST_WORDS:
        words = tokenizer.letters()
    if len(words) < LEAST_LETTERS:
        raise ConfigError(
            f"workload.tokenizer={tokenizer.folder} has only {len(words)} words and letters of one token to "
            "name prompts by; leave it out"
        )
    return _tokens([(number, 0, word) for number, word in words], as_ids)


def _levels(
    tokenizer: Tokenizer, spec: Conversations | None, pool: TokenPool, seed: int, as_ids: bool
) -> tuple[PromptLevel, ...]:
    if spec is None:
        return ()
    parts = {part.name: part for part in parts_of(spec)}
    means = spec.message_tokens.mean, spec.answer_tokens.mean
    said = _pool(tokenizer, talk(seed + 1, means, _line(parts["history"])), as_ids)
    plain = []
    for part in (parts[name] for name in PLAIN):  # the template's text is encoded by itself
        head, tail = (_fixed(tokenizer, text, as_ids) for text in _around(part))
        plain.append(PromptLevel(pool, part.role, head, tail))
    end_of_cut = _fixed(tokenizer, _line(parts["history"])("", TEXT).partition(TEXT)[2], as_ids)
    return (*plain, PromptLevel(said, parts["history"].role, end_of_cut))


def _around(part: PromptPart) -> tuple[str, str]:
    """The text of a template before and after its content; a level's naming words replace the name.

    Raises ConfigError for a template that wants other data.
    """
    person = {"name": "", "definition": TEXT, "persona": TEXT}
    data = {"system": TEXT, "character": person, "user": person}
    before, _, after = "".join(piece.text for piece in PromptTemplate([part]).render(data)).partition(TEXT)
    return before.removesuffix(" "), after


def _fixed(tokenizer: Tokenizer, text: str, as_ids: bool) -> list[bytes]:
    return _tokens(tokenizer.pieces(text), as_ids) if text else []


def _line(part: PromptPart) -> Callable[[str, str], str]:
    """A function that formats one message of a history from author and text, always as a line."""
    template = PromptTemplate([replace(part, each="")])

    def line(author: str, text: str) -> str:
        said = "".join(piece.text for piece in template.render({"item": {"author": author, "text": text}}))
        return said if said[-1:].isspace() else f"{said}\n"

    return line
