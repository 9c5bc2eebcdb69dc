"""Prompts of real text: sentences encoded once by a model's tokenizer and cut between tokens."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from conf import ConfigError
from conf.specs.conversation import Conversations, PromptPart
from conf.specs.experiment import Workload
from loadgen.prompts.templates import PromptTemplate, parts_of
from loadgen.prompts.token_pool import POOL_TOKENS, PromptLevel, PromptSource, TokenPool
from loadgen.prompts.tokenizer import Tokenizer

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


def talk(seed: int, mean_tokens: tuple[int, int], line: Callable[[str, str], str]) -> Iterator[str]:
    """Endless lines of user and character in turn, about `mean_tokens` long, each formatted by `line`."""
    text = sentences(seed)
    for author, tokens in cycle(zip(("User", "Character"), mean_tokens, strict=True)):
        said = next(text)
        while len(said) < LETTERS_PER_TOKEN * tokens:
            said += next(text)
        yield line(author, said.strip())


def _numbers(seed: int) -> Iterator[int]:
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(0, 2**31, size=DRAWN).tolist()


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
