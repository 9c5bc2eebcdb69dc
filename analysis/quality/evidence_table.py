"""The evidence of a gate as rows, and as Parquet, from which the verdict follows again."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.quality.answers import MOST_NATS, PAIRS, SIDES, ComparedAnswers, PromptEvidence
from analysis.rows import parquet
from analysis.rows.parquet import Column, schema
from conf.io.one_line import reason

FILE = "quality-b.parquet"
"""The evidence on B in a study's folder."""
SCHEMA_VERSION = 1
MOST_ROWS = 6_000_000
"""Most rows of a file: two pairs of 10,000 prompts of 256 tokens, and a failure of each side (our choice)."""
MOST_BYTES = 2**30
"""Most bytes of a file's columns, unpacked (our choice); so many rows have a third of it."""

_COLUMNS: tuple[Column, ...] = (
    ("prompt", pa.int32(), "", "number of the prompt, from 0; the order in which prompts count"),
    ("pair", parquet.WORD, "", "side beside the base: again or candidate; null in a row of a failure"),
    ("position", pa.int16(), "", "token of the answer, from 0, up to the first that differs; null likewise"),
    ("base_token", pa.int32(), "", "token id of the base"),
    ("token", pa.int32(), "", "token id of the other side"),
    (
        "divergence_nats",
        pa.float64(),
        "nats",
        "Jensen-Shannon divergence over the alternatives in both and the rest",
    ),
    ("differs", pa.bool_(), "", "the tokens differ"),
    ("unanswered", parquet.WORD, "", "side whose request failed: base, again, candidate; else null"),
)

EVIDENCE = schema(_COLUMNS, {"schema_version": str(SCHEMA_VERSION)})
"""Arrow schema of the evidence: a row per compared position, and one per failed request."""
_READ_AS = parquet.with_words(EVIDENCE, parquet.WIDE_WORD)
_COMPARED = ("position", "base_token", "token", "divergence_nats", "differs")

Ints = NDArray[np.int64]


def table(found: Iterable[PromptEvidence]) -> pa.Table:
    """The rows of prompts, in their order."""
    rows = [row for one in found for row in _rows(one)]
    columns = list(zip(*rows, strict=True)) or [() for _ in EVIDENCE]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EVIDENCE, strict=True)]
    return pa.table(arrays, schema=EVIDENCE)


def prompts(rows: pa.Table) -> list[PromptEvidence]:
    """The evidence in a table of schema `EVIDENCE`, by the number of the prompt.

    Raises ValueError, with one line, for rows that no gate wrote.
    """
    _check(rows)
    position = rows["position"].fill_null(-1).to_numpy()
    ordered = rows.take(pa.array(np.lexsort((position, rows["prompt"].to_numpy()))))
    starts = np.flatnonzero(np.diff(ordered["prompt"].to_numpy(), prepend=-1))
    ends = [*starts[1:], ordered.num_rows][: len(starts)]
    return [_prompt(ordered.slice(start, end - start)) for start, end in zip(starts, ends, strict=True)]


def write(found: Iterable[PromptEvidence], path: Path) -> None:
    """Write the evidence as Parquet, whole or not at all. Raises OSError if the disk does not take it."""
    parquet.write(table(found), path)


def read(path: Path) -> list[PromptEvidence]:
    """The evidence in a file. Raises ValueError, with one line, for one that is broken or of something else.

    Raises OSError where it cannot be opened.
    """
    try:
        with pq.ParquetFile(path) as file:
            parquet.refuse_version(path, file.schema_arrow, SCHEMA_VERSION)
            _refuse_foreign(file)
            rows = file.read(columns=EVIDENCE.names)
        return prompts(parquet.narrowed(rows.select(EVIDENCE.names).cast(_READ_AS), EVIDENCE))
    except OSError:
        raise
    except (pa.ArrowException, ValueError) as error:
        raise ValueError(f"{path} is no evidence of a gate: {reason(error)}") from error


def _rows(found: PromptEvidence) -> Iterator[tuple[object, ...]]:
    for pair, one in zip(PAIRS, (found.again, found.candidate), strict=True):
        if one is not None:
            tokens = zip(one.base_tokens, one.tokens, one.nats, strict=True)
            for at, (base, token, nats) in enumerate(tokens):
                yield found.prompt, pair, at, base, token, nats, base != token, None
    for side in found.unanswered:
        yield found.prompt, None, None, None, None, None, None, side


def _refuse_foreign(file: pq.ParquetFile) -> None:
    """Raise ValueError before anything is read that is too much, or has other columns."""
    known, meta = file.schema_arrow, file.metadata
    if lacking := [name for name in EVIDENCE.names if name not in known.names]:
        raise ValueError(f"it lacks {', '.join(lacking)}")
    for field in EVIDENCE:
        kind = known.field(field.name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        right = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if kind != right:
            raise ValueError(f"its {field.name} is {kind} and not {right}")
    size = sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))
    if meta.num_rows > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(f"{meta.num_rows} rows of {size} bytes; at most {MOST_ROWS} of {MOST_BYTES}")


def _check(rows: pa.Table) -> None:
    """Raise ValueError for values that no gate writes, whichever row they are in."""
    failed = rows["unanswered"].is_valid().to_numpy()
    _require(not rows["prompt"].null_count and not (rows["prompt"].to_numpy() < 0).any(), "a prompt's number")
    for name in (*_COMPARED, "pair"):
        _require((rows[name].is_valid().to_numpy() != failed).all(), f"{name} is missing, or too much")
    for name, words in (("pair", PAIRS), ("unanswered", SIDES)):
        _require(set(rows[name].drop_null().unique().to_pylist()) <= set(words), f"a word of {name}")
    nats = rows["divergence_nats"].drop_null().to_numpy()
    _require(((nats >= 0) & (nats <= MOST_NATS)).all(), "a divergence outside 0 to ln 2")
    base, token, differs = (_known(rows, name) for name in ("base_token", "token", "differs"))
    _require(((base != token) == differs.astype(bool)).all(), "differs is not what the tokens say")


def _known(rows: pa.Table, name: str) -> Ints:
    return np.asarray(rows[name].drop_null().to_numpy(zero_copy_only=False), dtype=np.int64)


def _prompt(rows: pa.Table) -> PromptEvidence:
    """The evidence of one prompt: its rows by pair and position, those of failures last."""
    number = rows["prompt"][0].as_py()
    pairs = rows["pair"].to_pylist()
    compared = {
        name: _comparison(rows.filter(pa.array([one == name for one in pairs])), number) for name in PAIRS
    }
    failed = rows["unanswered"].drop_null().to_pylist()
    missing = tuple(side for side in SIDES if side in failed)
    whole = {name: "base" not in missing and name not in missing for name in PAIRS}
    _require(len(failed) == len(missing), f"prompt {number} failed twice")
    for name, one in compared.items():
        _require((one is not None) == whole[name], f"prompt {number}: {name} is missing, or too much")
    return PromptEvidence(number, compared["again"], compared["candidate"], missing)


def _comparison(rows: pa.Table, number: int) -> ComparedAnswers | None:
    if not rows.num_rows:
        return None
    at, base, token = (tuple(_known(rows, name).tolist()) for name in ("position", "base_token", "token"))
    ended = [one != two for one, two in zip(base, token, strict=True)]
    _require(at == tuple(range(len(at))), f"prompt {number} has positions twice, or gaps")
    _require(not any(ended[:-1]), f"prompt {number} goes on after a token that differs")
    return ComparedAnswers(base, token, tuple(rows["divergence_nats"].to_pylist()))


def _require(right: bool | np.bool_, wrong: str) -> None:
    if not right:
        raise ValueError(wrong)
