"""Answers of three sides to one prompt, where two of them differ, and the files that hold them.

The sides are `base`, the configuration that decides what is right, `again`, the same once more (the repeat),
whose distance from `base` is the noise of batching, and `candidate`.
"""

import math
import statistics
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.rows import parquet

Alternatives = Mapping[int, float]
"""The most likely tokens at a position: log probability (nats) by token id."""

MOST_NATS = math.log(2)
"""Jensen-Shannon divergence of distributions that share nothing."""
ROUNDING = 1e-3
"""Log probability (nats) above 0 that is taken for 0: half precision rounds to 2^-11 of the value."""


def jensen_shannon(a: Alternatives, b: Alternatives) -> float:
    """A lower bound of the Jensen-Shannon divergence over all tokens, in nats, 0 to ln 2; symmetric.

    Tokens are put together, which cannot raise a divergence (data processing): those in both stand alone, and
    beside the rest is the part that one side alone tells. Each of its tokens is at most as likely on the
    other side as the least likely that this one tells, and within that the part is taken to be as brings both
    nearest. Without it, answers that share no likely token would not diverge at all. Raises ValueError as
    `check` does.
    """
    check(a)
    check(b)
    return max(_bound(a, b), _bound(b, a))


def check(alternatives: Alternatives) -> None:
    """Raise ValueError unless every value can be a log probability; that of an impossible token is -inf."""
    for token, nats in alternatives.items():
        if not nats <= ROUNDING:
            raise ValueError(f"{nats:g} of token {token} is no log probability")


def _bound(a: Alternatives, b: Alternatives) -> float:
    """The divergence with the tokens that only `a` tells as a part of their own."""
    both = sorted(a.keys() & b.keys())
    known_a, known_b = ([_probability(of[token]) for token in both] for of in (a, b))
    own = [_probability(nats) for token, nats in a.items() if token not in b]
    alone = math.fsum(own)
    rest_a, rest_b = _rest([*known_a, alone]), _rest(known_b)
    even = rest_b * alone / (alone + rest_a) if alone else 0.0
    unseen = min(even, len(own) * _probability(min(b.values(), default=0.0)))
    cells_a, cells_b = [*known_a, alone, rest_a], [*known_b, unseen, rest_b - unseen]
    size_a, size_b = (max(1.0, math.fsum(cells)) for cells in (cells_a, cells_b))
    total = math.fsum(_part(p / size_a, q / size_b) for p, q in zip(cells_a, cells_b, strict=True))
    return min(max(total, 0.0), MOST_NATS)


def _probability(nats: float) -> float:
    return math.exp(min(nats, 0.0))


def _rest(known: list[float]) -> float:
    """Probability of all other tokens; rounding may leave it below 0."""
    return max(0.0, 1.0 - math.fsum(known))


def _part(p: float, q: float) -> float:
    """Part of one token, or of the rest, in the divergence."""
    middle = (p + q) / 2
    ours, theirs = (share * math.log(share / middle) if share > 0 else 0.0 for share in (p, q))
    return (ours + theirs) / 2


Side = Literal["base", "again", "candidate"]
Pair = Literal["again", "candidate"]
"""A side that is compared with `base`."""
SIDES: tuple[Side, ...] = ("base", "again", "candidate")
PAIRS: tuple[Pair, ...] = ("again", "candidate")


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of one answer, and at each position what else was likely there, and how likely.

    Raises ValueError for no token, for positions without alternatives, and for what is no log probability.
    """

    tokens: tuple[int, ...]
    alternatives: tuple[Alternatives, ...]

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.alternatives):
            raise ValueError(f"{len(self.tokens)} tokens with alternatives at {len(self.alternatives)}")
        for at, alternatives in enumerate(self.alternatives):
            if not alternatives:
                raise ValueError(f"no alternatives at position {at}")
            check(alternatives)

    @property
    def listed_mass(self) -> float:
        """Mean probability of all alternatives of a position together; what they lack is not compared."""
        mass = [math.fsum(map(math.exp, likely.values())) for likely in self.alternatives]
        return statistics.fmean(mass)


@dataclass(frozen=True, slots=True)
class ComparedAnswers:
    """Two answers up to and including the first position whose tokens differ; nats per position.

    Until there both sides had read the same text, so that their distributions answer the same question; what
    follows would compare different questions. All three have one length, at least 1.
    """

    base_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    nats: tuple[float, ...]

    @property
    def positions(self) -> int:
        """Positions that could differ: those at risk."""
        return len(self.nats)

    @property
    def flipped(self) -> bool:
        """True if the answers differ."""
        return self.base_tokens[-1] != self.tokens[-1]

    @property
    def mean_nats(self) -> float:
        return statistics.fmean(self.nats)

    @property
    def most_nats(self) -> float:
        return max(self.nats)


@dataclass(frozen=True, slots=True)
class PromptEvidence:
    """The comparisons of one prompt: its number from 0, and each side beside `base`; None was not answered.

    `unanswered` are the sides whose request failed. Without `base` nothing can be compared.
    """

    prompt: int
    again: ComparedAnswers | None
    candidate: ComparedAnswers | None
    unanswered: tuple[Side, ...] = ()


def compare(base: Answer, other: Answer) -> ComparedAnswers:
    """The positions of two answers up to and including the first that differs."""
    alike = 0
    for ours, two in zip(base.tokens, other.tokens, strict=False):
        if ours != two:
            break
        alike += 1
    end = min(alike + 1, len(base.tokens), len(other.tokens))
    pairs = zip(base.alternatives[:end], other.alternatives[:end], strict=True)
    nats = tuple(jensen_shannon(ours, two) for ours, two in pairs)
    return ComparedAnswers(base.tokens[:end], other.tokens[:end], nats)


def evidence(prompt: int, answers: Mapping[Side, Answer]) -> PromptEvidence:
    """The evidence of one prompt from the answers that came; a side that is missing failed."""
    base = answers.get("base")
    compared = {pair: compare(base, answers[pair]) if base and pair in answers else None for pair in PAIRS}
    missing = tuple(side for side in SIDES if side not in answers)
    return PromptEvidence(prompt, compared["again"], compared["candidate"], missing)


FILE = "answers.parquet"
MOST_ANSWERS = 100_000
"""Most answers of a file that are read: a hundred default budgets (our choice)."""
MOST_BYTES = 2**30
"""Most bytes of a file's columns, unpacked: the largest budget has four fifths of them (our choice)."""

SCHEMA_VERSION = 1
ANSWERS = parquet.described("answers", SCHEMA_VERSION)
EVIDENCE_FILE = "quality-b.parquet"
"""The evidence on B in a study's folder, for other readers: ours compare the answers again."""
EVIDENCE = parquet.described("quality-b", SCHEMA_VERSION)
"""Arrow schema of the evidence: a row per compared position, and one per failed request."""


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One request of the gate: `answer` is None where it failed, and `error` says why.

    `repeat` is 0 for the first answer to a prompt and 1 for the second.
    """

    prompt: int
    digest: int
    repeat: int
    answer: Answer | None
    error: str | None = None
    text: str | None = None


def digest(prompt: Sequence[int]) -> int:
    """A number that tells prompts apart: CRC-32 of their token ids."""
    return zlib.crc32(np.asarray(prompt, np.int64).tobytes())


def write(answers: Iterable[AnswerRecord], path: Path) -> None:
    """Write answers in order of prompt and repeat, whole or not at all. Raises OSError."""
    rows = [_row(answer) for answer in sorted(answers, key=lambda answer: (answer.prompt, answer.repeat))]
    parquet.write(pa.Table.from_pylist(rows, schema=ANSWERS), path)


def read(path: Path) -> list[AnswerRecord]:
    """The answers of a file. Raises OSError, ArrowException or ValueError for what is no such file."""
    file = pq.ParquetFile(path)
    parquet.refuse_foreign(path, file.schema_arrow, SCHEMA_VERSION, "answers", ANSWERS.names)
    meta = file.metadata
    size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    if meta.num_rows > MOST_ANSWERS or size > MOST_BYTES:
        most = f"{MOST_ANSWERS} of {MOST_BYTES}"
        raise ValueError(f"{path} has {meta.num_rows} rows of {size} bytes; at most {most} are read")
    table = file.read(columns=ANSWERS.names).cast(ANSWERS)
    try:
        return [_recorded(row) for row in table.to_pylist()]
    except TypeError as error:  # a null where no writer leaves one
        raise ValueError(f"{path} is no table of answers: {error}") from error


def _row(record: AnswerRecord) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in ("prompt", "digest", "repeat", "error", "text")}
    if record.answer is None:
        return row
    alternatives = record.answer.alternatives
    return row | {
        "tokens": record.answer.tokens,
        "alternatives": [len(likely) for likely in alternatives],
        "alternative_ids": [token for likely in alternatives for token in likely],
        "log_probabilities": [nats for likely in alternatives for nats in likely.values()],
    }


def _recorded(row: dict[str, Any]) -> AnswerRecord:
    """The record of a row. Raises ValueError if its lists do not belong together."""
    answer = None
    if row["tokens"] is not None:
        likely = zip(row["alternative_ids"], row["log_probabilities"], strict=True)
        alternatives = tuple(dict(islice(likely, count)) for count in row["alternatives"])
        counts = [len(alternative) for alternative in alternatives]
        if counts != row["alternatives"] or next(likely, None) is not None:
            raise ValueError(f"the answer to prompt {row['prompt']} has other alternatives than it counts")
        answer = Answer(tuple(row["tokens"]), alternatives)
    return AnswerRecord(row["prompt"], row["digest"], row["repeat"], answer, row["error"], row["text"])


def folder_evidence(base: Path, candidate: Path) -> list[PromptEvidence]:
    """The evidence in two folders with answers.

    Raises OSError, ArrowException or ValueError for folders without comparable answers.
    """
    return evidence_of(*(read(path / FILE) for path in (base, candidate)))


def evidence_of(a: Sequence[AnswerRecord], b: Sequence[AnswerRecord]) -> list[PromptEvidence]:
    """The evidence of every prompt that B was asked. Raises ValueError if A was asked others."""
    base_answers = by_prompt(a)
    return [evidence_on(answer, base_answers) for answer in b if answer.repeat == 0]


def evidence_on(answer: AnswerRecord, base_answers: Mapping[tuple[int, int], AnswerRecord]) -> PromptEvidence:
    """The evidence of an answer of B, from A's answers `by_prompt`."""
    base, again = (base_answers.get((answer.prompt, repeat)) for repeat in (0, 1))
    if base is None or again is None or base.digest != answer.digest:
        raise ValueError(f"A was not asked prompt {answer.prompt} of B")
    answers: dict[Side, Answer | None] = {
        "base": base.answer,
        "again": again.answer,
        "candidate": answer.answer,
    }
    return evidence(answer.prompt, {side: answer for side, answer in answers.items() if answer})


def by_prompt(answers: Sequence[AnswerRecord]) -> dict[tuple[int, int], AnswerRecord]:
    """Answers by the number of the prompt and of the repeat."""
    return {(answer.prompt, answer.repeat): answer for answer in answers}


def write_evidence(prompts: Iterable[PromptEvidence], path: Path) -> None:
    """Write the evidence as Parquet, whole or not at all. Raises OSError if the disk does not take it."""
    rows = [row for prompt in prompts for row in _evidence_rows(prompt)]
    parquet.write(pa.Table.from_pylist(rows, schema=EVIDENCE), path)


def _evidence_rows(prompt: PromptEvidence) -> Iterator[dict[str, Any]]:
    for pair, compared in zip(PAIRS, (prompt.again, prompt.candidate), strict=True):
        if compared is not None:
            tokens = zip(compared.base_tokens, compared.tokens, compared.nats, strict=True)
            for position, (base, token, nats) in enumerate(tokens):
                yield {
                    "prompt": prompt.prompt,
                    "pair": pair,
                    "position": position,
                    "base_token": base,
                    "token": token,
                    "divergence_nats": nats,
                    "differs": base != token,
                }
    for side in prompt.unanswered:
        yield {"prompt": prompt.prompt, "unanswered": side}
