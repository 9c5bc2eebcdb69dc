"""Requests drawn from records of clients, in the form that ServeGen publishes (arXiv 2505.09999, Apache 2.0).

`chunk-N-trace.csv` has a line per span of time: its start in s, requests/s, the gaps' coefficient of
variation, their distribution with two parameters. `chunk-N-dataset.json` has shares of lengths by start of a
longer span."""

import csv
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from loadgen.traffic.schedule import Floats, Ints

TRACE, DATASET = "-trace.csv", "-dataset.json"
MOST_BYTES = 64 << 20
"""Largest file of a client that is read; the largest published one has some 5 MB."""
MOST_REQUESTS = 5_000_000
"""More requests than a driver holds with ease (our choice)."""
COLUMNS = 6
MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Span:
    """One client from `start_s` to `end_s`: requests/s, and the shape of its gamma or Weibull gaps."""

    start_s: float
    end_s: float
    rate_qps: float
    weibull: bool
    shape: float

    @property
    def requests(self) -> int:
        """The rate is a count over the span, so that this one is as recorded."""
        return round(self.rate_qps * (self.end_s - self.start_s))

    def due_s(self, rng: np.random.Generator) -> Floats:
        """The recorded number of requests; gaps of the recorded shape fill the span from anywhere in one."""
        count = self.requests
        gaps = rng.weibull(self.shape, count) if self.weibull else rng.standard_gamma(self.shape, count)
        total = float(gaps.sum())
        places = np.cumsum(gaps) / total if total else rng.random(count)
        width_s = self.end_s - self.start_s
        return self.start_s + width_s * np.sort((places + rng.random()) % 1.0)


def drawn(folder: Path, from_s: float, span_s: float | None, seed: int) -> tuple[Floats, Ints, Ints]:
    """Due times in s, prompt and answer tokens of all clients' requests in a part of the records, by time.

    Each client has randomness of its own. Raises ValueError with file and reason, and OSError.
    """
    end_s = math.inf if span_s is None else from_s + span_s
    paths = sorted(folder.glob(f"*{TRACE}"))
    if not paths:
        raise ValueError(f"the folder has no file *{TRACE} of client records")
    parts: list[tuple[Floats, Ints, Ints]] = []
    count = 0
    for number, path in enumerate(paths):
        inside = [span for span in _spans(path) if from_s <= span.start_s < end_s and span.requests]
        count += sum(span.requests for span in inside)
        if count > MOST_REQUESTS:
            raise ValueError(
                f"the records have more than {MOST_REQUESTS} requests; take a part of them with "
                "workload.trace_span_s=3600"
            )
        if inside:
            lengths = _Lengths(path.with_name(path.name.removesuffix(TRACE) + DATASET))
            rng = np.random.default_rng([seed, number])
            parts += [(span.due_s(rng), *lengths.drawn_for(span, rng)) for span in inside]
    if not parts:
        raise ValueError(
            f"no client has a request from {from_s:g} s on; choose another workload.trace_from_s or a longer "
            "workload.trace_span_s"
        )
    due_s, inputs, outputs = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(due_s, kind="stable")
    return due_s[order], inputs[order], outputs[order]


def _spans(path: Path) -> list[Span]:
    """The lines of a client; the last span is as long as the one before it. Raises ValueError."""
    with _open(path) as file:
        rows = [_numbers(path, number, cells) for number, cells in enumerate(csv.reader(file), 1) if cells]
    starts = [row[0] for row in rows]
    if any(later <= start for start, later in zip(starts, starts[1:], strict=False)):
        raise ValueError(f"{path.name}: its times do not ascend")
    if len(rows) < 2:
        raise ValueError(f"{path.name}: two lines are needed to know how long a span is")
    ends = [*starts[1:], 2 * starts[-1] - starts[-2]]
    return [Span(row[0], end, row[1], row[2], row[3]) for row, end in zip(rows, ends, strict=True)]


def _open(path: Path) -> TextIO:
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"{path.name} is larger than {MOST_BYTES >> 20} MiB")
    return path.open(encoding="utf-8", newline="")


def _numbers(path: Path, number: int, cells: Sequence[str]) -> tuple[float, float, bool, float]:
    """Start, rate, whether gaps are Weibull's, and their shape. Raises ValueError with the line."""
    where = f"{path.name} line {number}"
    if len(cells) != COLUMNS:
        raise ValueError(f"{where} has {len(cells)} columns, not start, rate, cv, distribution and two more")
    try:
        start_s, rate_qps, cv, shape = (float(cells[at]) for at in (0, 1, 2, 4))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    kind = cells[3].strip()
    if kind not in ("", "Gamma", "Weibull"):
        raise ValueError(f"{where}: '{kind:.20}' is no distribution of gaps; Gamma and Weibull are")
    shape = shape if kind else 1 / cv**2 if cv else 1.0  # without a kind gamma, by the variation
    if not all(map(math.isfinite, (start_s, rate_qps, shape))) or rate_qps < 0 or shape < 0:
        raise ValueError(f"{where}: its numbers must be finite, and not negative")
    if rate_qps and not shape:
        raise ValueError(f"{where}: gaps of shape 0 cannot be drawn")
    return start_s, rate_qps, kind == "Weibull", shape


class _Lengths:
    """The prompt and answer lengths of one client, by start of a span."""

    def __init__(self, path: Path) -> None:
        """Raises ValueError, and OSError for a file that is not there."""
        self._name = path.name
        try:
            with _open(path) as file:
                tree = json.load(file)
        except RecursionError:
            tree = None
        if not isinstance(tree, dict):
            raise ValueError(f"{path.name} is not a JSON object")
        self._spans: list[tuple[float, tuple[tuple[Ints, Floats], ...]]] = []
        for start, fields in tree.items():
            pair = tuple(self._shares(start, fields, name) for name in ("input_tokens", "output_tokens"))
            if all(len(values) for values, _ in pair):
                self._spans.append((self._start(start), pair))
        if not self._spans:
            raise ValueError(f"{path.name} has no lengths, but its client has requests")
        self._spans.sort(key=lambda span: span[0])

    def drawn_for(self, span: Span, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Lengths of the requests of a span, from the latest record that is no later, or else the first."""
        place = bisect_right([start for start, _ in self._spans], span.start_s)
        _, pair = self._spans[max(0, place - 1)]
        inputs, outputs = (rng.choice(values, size=span.requests, p=shares) for values, shares in pair)
        return inputs, outputs

    def _start(self, text: str) -> float:
        try:
            return float(text)
        except ValueError as error:
            raise ValueError(f"{self._name}: '{text:.20}' is no time in seconds") from error

    def _shares(self, start: str, fields: Any, name: str) -> tuple[Ints, Floats]:
        """Lengths and their shares, which ServeGen writes as a text `{length: share, ...}`."""
        where = f"{self._name} at {start:.20}"
        if not isinstance(fields, dict) or name not in fields:
            raise ValueError(f"{where} has no {name}; records of language and reasoning models have it")
        recorded = fields[name]
        try:
            if isinstance(recorded, str):
                inner = recorded.strip().removeprefix("{").removesuffix("}")
                pairs = [tuple(part.split(":")) for part in inner.split(",") if part.strip()]
            else:
                pairs = list(recorded.items())
            lengths = np.array([int(length) for length, _ in pairs], dtype=np.int64)
            shares = np.array([float(share) for _, share in pairs])
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(
                f"{where}: {name} must be shares by length, as {{800: 0.25, 900: 0.75}}"
            ) from error
        if not len(shares):
            return lengths, shares
        total = float(shares.sum())
        are_tokens = lengths.min() >= 0 and lengths.max() <= MOST_TOKENS
        if not are_tokens or not (shares >= 0).all() or not 0 < total < math.inf:
            raise ValueError(f"{where}: {name} has a length or a share that cannot be")
        return np.maximum(1, lengths), shares / total
