"""Recorded requests: arrival times and token counts, read from a file or drawn from client records."""

import csv
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TextIO

import numpy as np
from numpy.typing import NDArray

from analysis.results.json_border import from_tree
from analysis.results.locations import RunError
from conf import ConfigError
from conf.io.check import Range
from conf.specs.experiment import Workload
from loadgen.traffic import client_records
from loadgen.traffic.prefix_sharing import begins, reusable_tokens

CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PAIR_COLUMNS = ("input_length", "output_length")
"""A CSV file of lengths alone: input and output of each request, drawn together for other arrivals."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_MS = 2**42
"""Times further from 1970 (139 years) are refused, so that nanoseconds hold the difference of any two."""
MOST_TOKENS = 2**31 - 1
"""Largest value of the request table's columns."""

FORM = (
    "a request has timestamp, input_length from 1 up, output_length from 0 up and perhaps hash_ids, integers"
)
MISFITS = 0.01
"""Largest share of requests whose hashes do not fit their lengths (our choice)."""

Blocks = tuple[int, ...]
"""Hashes of a prompt's blocks, the first ones first; empty where the file says none."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One line of a file: its time in ms, whole counts of tokens, the hashes of the prompt's blocks."""

    timestamp: Annotated[float, Range(ge=-MOST_MS, le=MOST_MS)]
    input_length: Annotated[float, Range(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[float, Range(ge=0, le=MOST_TOKENS)]
    hash_ids: tuple[Annotated[int, Range(gt=-(2**64), lt=2**64)], ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests by time, the first at 0; all arrays have one length, at least 1.

    `blocks` has each request's block hashes if some prompts begin alike (`hash_ids`), of `block_tokens`
    tokens. `empty_answers` counts requests recorded without output tokens.
    """

    due_ns: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    empty_answers: int
    blocks: tuple[Blocks, ...] = ()
    block_tokens: int = 0

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def mean_qps(self) -> float:
        """Gaps per second from the first request to the last; infinite if all came at once."""
        span_ns = int(self.due_ns[-1])
        return (len(self) - 1) * 1e9 / span_ns if span_ns else math.inf


def read_trace(
    path: str | Path, from_s: float = 0.0, span_s: float | None = None, block_tokens: int = 512, seed: int = 0
) -> Trace:
    """The trace in a file, sorted by time, or one that `seed` draws from a folder of client records.

    A file's first line decides its form. Times count from the first request, to the microsecond; without a
    zone they are UTC. Requests from `from_s` on, for `span_s`, are kept. A request without output tokens asks
    for one, the least a server gives. A block hash stands for `block_tokens` tokens. Raises ConfigError that
    names file and line.
    """
    try:
        if Path(path).is_dir():
            due_s, inputs, outputs = client_records.drawn(Path(path), from_s, span_s, seed)
            return Trace(np.rint((due_s - due_s[0]) * 1e9).astype(np.int64), inputs, outputs, 0)
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return _part(_read(file, block_tokens), from_s, span_s)
    except OSError as error:
        raise ConfigError(f"cannot read the trace {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {path} is not text; unpack it first if it is compressed") from error
    except RunError as error:
        raise ConfigError(f"trace {path}: {error}; {FORM}") from error
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"trace {path}: {error}") from error


def workload_trace(workload: Workload) -> Trace | None:
    """The trace that a workload names, or None. Raises ConfigError, also for arrivals all at once."""
    if not workload.trace:
        return None
    trace = read_trace(
        workload.trace,
        workload.trace_from_s,
        workload.trace_span_s,
        workload.trace_block_tokens,
        workload.trace_seed,
    )
    if workload.arrivals.kind == "trace" and math.isinf(trace.mean_qps):
        raise ConfigError(
            f"trace {workload.trace}: arrivals.kind=trace needs requests at different times; for lengths "
            "without times add workload.arrivals.kind=poisson"
        )
    return trace


def resolve(workload: Workload) -> Workload:
    """The workload with the rounded means of its empirical lengths. Raises ConfigError."""
    trace = workload_trace(workload)
    if trace is None:
        return workload
    inputs, outputs = (
        replace(lengths, mean=round(float(tokens.mean()))) if lengths.kind == "empirical" else lengths
        for lengths, tokens in (
            (workload.input_tokens, trace.input_tokens),
            (workload.output_tokens, trace.output_tokens),
        )
    )
    return replace(workload, input_tokens=inputs, output_tokens=outputs)


def cautions(workload: Workload) -> list[str]:
    """Differences between the trace and what the workload sends, one line each."""
    trace = workload_trace(workload)
    lines = []
    if trace is not None and trace.blocks and not workload.replays_prefixes:
        hit = workload.prefix_hit
        prompt = f"begins with workload.prefix_hit={hit:g} of it" if hit else "is unique"
        lines.append(f"{workload.trace}: its shared prefixes are not replayed, every prompt {prompt}")
    if trace is not None and trace.empty_answers:
        lines.append(f"{workload.trace}: {trace.empty_answers} requests without an answer ask for one token")
    return lines


def reuse(trace: Trace) -> float:
    """Share of all prompt tokens that an earlier prompt of the trace began with."""
    if not trace.blocks:
        return 0.0
    count = np.arange(len(trace))
    begun = begins(trace.blocks, trace.block_tokens, count, trace.input_tokens, count)
    return float(reusable_tokens(begun).sum() / trace.input_tokens.sum())


def _part(trace: Trace, from_s: float, span_s: float | None) -> Trace:
    """The requests of a part of the trace, from its first request's time on. Raises ValueError for none."""
    if not from_s and span_s is None:
        return trace
    end_s = math.inf if span_s is None else from_s + span_s
    first, last = np.searchsorted(trace.due_ns, [from_s * 1e9, min(end_s * 1e9, 2.0**62)])
    if first == last:
        raise ValueError(
            f"it has no request there, its last is due at {trace.due_ns[-1] / 1e9:g} s; choose another "
            "workload.trace_from_s or a longer workload.trace_span_s"
        )
    return replace(
        trace,
        due_ns=trace.due_ns[first:last] - trace.due_ns[first],
        input_tokens=trace.input_tokens[first:last],
        output_tokens=trace.output_tokens[first:last],
        blocks=trace.blocks[first:last],
    )


def _lines(file: TextIO) -> Iterator[tuple[int, Any]]:
    """Every request as a tree, by the number of its line. Raises ValueError or csv.Error."""
    first = file.readline()
    if not first:
        raise ValueError("the file is empty")
    if not first.lstrip().startswith("{"):
        yield from _csv_lines(first, file)
        return
    for number, line in enumerate(chain([first], file), 1):
        try:
            if line.strip():
                yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is not a JSON object") from error


def _csv_lines(header: str, lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    names = [name.strip() for name in next(csv.reader([header]))]
    timed = set(CSV_COLUMNS) <= set(names)
    if not timed and not set(PAIR_COLUMNS) <= set(names):
        raise ValueError(
            f"line 1 is neither a JSON object nor a header with {','.join(CSV_COLUMNS)}, or with "
            f"{','.join(PAIR_COLUMNS)} for lengths without times"
        )
    inputs, outputs = CSV_COLUMNS[1:] if timed else PAIR_COLUMNS
    reader = csv.reader(lines)
    for cells in reader:
        number = reader.line_num + 1
        if cells and len(cells) != len(names):
            raise ValueError(f"line {number} has {len(cells)} columns, not {len(names)}")
        try:
            if row := dict(zip(names, cells, strict=False)):
                at_ms = _milliseconds(row[CSV_COLUMNS[0]]) if timed else 0
                tokens = {"input_length": int(row[inputs]), "output_length": int(row[outputs])}
                yield number, {"timestamp": at_ms, **tokens}
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error


def _milliseconds(stamp: str) -> float:
    moment = datetime.fromisoformat(stamp.strip())
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - EPOCH) / timedelta(milliseconds=1)


def _read(file: TextIO, block_tokens: int) -> Trace:
    """Raises ValueError, csv.Error or RunError, with the number of the bad line."""
    at_us, inputs, outputs = array("q"), array("q"), array("q")
    blocks: list[Blocks] = []
    for number, tree in _lines(file):
        request = from_tree(RecordedRequest, tree, f"line {number}")
        for name, tokens in (("input", request.input_length), ("output", request.output_length)):
            if tokens % 1:
                raise ValueError(f"line {number}: {tokens} {name} tokens; a whole count is needed")
        at_us.append(round(request.timestamp * 1000))
        inputs.append(int(request.input_length))
        outputs.append(int(request.output_length))
        blocks.append(request.hash_ids or ())
    if not at_us:
        raise ValueError("no request follows its header")
    firsts = [hashes[0] for hashes in blocks if hashes]
    shares = len(firsts) > len(set(firsts))
    if shares:
        _refuse_misfit(blocks, inputs, block_tokens)
    times_us, answers = np.array(at_us), np.array(outputs)
    order = np.argsort(times_us, kind="stable")
    return Trace(
        due_ns=(times_us[order] - times_us.min()) * 1000,
        input_tokens=np.array(inputs)[order],
        output_tokens=np.maximum(1, answers[order]),
        empty_answers=int(np.count_nonzero(answers == 0)),
        blocks=tuple(blocks[i] for i in order.tolist()) if shares else (),
        block_tokens=block_tokens if shares else 0,
    )


def _refuse_misfit(blocks: Sequence[Blocks], inputs: Sequence[int], block_tokens: int) -> None:
    """Raise ValueError where the hashes cannot be of blocks of so many tokens."""
    hashed = [(len(hashes), tokens) for hashes, tokens in zip(blocks, inputs, strict=True) if hashes]
    strange = [
        (count, tokens)
        for count, tokens in hashed
        if not tokens // block_tokens <= count <= -(-tokens // block_tokens)
    ]
    if len(strange) > MISFITS * len(hashed):
        count, tokens = max(strange)
        raise ValueError(
            f"{len(strange)} of {len(hashed)} prompts have another number of hash_ids than blocks of "
            f"{block_tokens} tokens, one {count} for {tokens} tokens; set workload.trace_block_tokens"
        )
