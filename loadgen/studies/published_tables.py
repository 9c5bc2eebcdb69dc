"""The MI325X paper's tables and models, and the requests behind their rows.

The tables (arXiv 2603.10031, 14 to 17, 22 and 23) state a concurrency. The experiment behind them follows
from Little's law (docs/engine_checks.md): `saturation` rows are one burst of min(C, 450) requests,
`scaling` rows a closed loop over min(3C, 300), all with one fixed prompt.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from analysis.results.published_ladder import PublishedLevel
from conf import Experiment, load
from conf.io import bounded_yaml
from conf.specs.experiment import Hardware, Layout, Model
from loadgen.traffic.schedule import Ints

TABLES, MODELS = (Path(__file__).with_name(f"mi325x_{name}") for name in ("tables.csv", "models.yaml"))
SOURCE = "arXiv 2603.10031, tables 14 to 17, 22 and 23"
SCALING, SATURATION = "scaling", "saturation"
BURST_MOST, WAVES, CLOSED_MOST = 450, 3, 300
EARLY_TOKENS = 2
"""Tokens of answers that end at once: the fewest that have a time between tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestShape:
    """Lengths of requests in tokens.

    `limits` are the answer limits by phase, or by phase/C. `whole` is the share of requests that run to their
    limit; the others share the rest of the row's mean, and end at once if the row states none. `burst_mean`
    is the mean of bursts; 0 means the row's, or all to the limit.
    """

    prompt: int
    limits: Mapping[str, int]
    image_tokens: int = 0
    whole: float = 1.0
    burst_mean: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel(RequestShape):
    """One model of the paper and its clients' requests.

    `name` is the paper's, of its rows. `words` choose the model and its node here; their facts alone decide
    whether an experiment is the paper's. `fit_rms` is the training error of the constants that were fitted to
    all rows but those left out (docs/engine_checks.md).
    """

    name: str
    words: Sequence[str]
    fit_rms: float


PUBLISHED_MODELS = tuple(PublishedModel(**model) for model in bounded_yaml.read(MODELS.read_text()))
AGAIN = "is the row of table 23 again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow(PublishedLevel):
    """One line of the tables, of a phase at a concurrency; `p99_s` is that of the whole answer."""

    phase: str
    concurrency: int

    @property
    def level(self) -> PublishedLevel:
        """The row as it stands beside our level."""
        return PublishedLevel(**{each.name: getattr(self, each.name) for each in fields(PublishedLevel)})

    @property
    def burst(self) -> bool:
        return self.phase == SATURATION

    @property
    def requests(self) -> int:
        return requests(self.concurrency, self.burst)

    @property
    def in_flight(self) -> int:
        return min(self.concurrency, self.requests)


def requests(concurrency: int, burst: bool) -> int:
    """Number of requests of a row's experiment."""
    return min(concurrency, BURST_MOST) if burst else min(WAVES * concurrency, CLOSED_MOST)


def published_rows(path: Path = TABLES) -> dict[str, list[PublishedRow]]:
    """The rows of each model in the order of the tables."""
    text = "".join(line for line in path.read_text().splitlines(True) if not line.startswith("#"))
    types = {name: pa.float64() for name in ("total_tok_s", "output_tok_s")} | {"table": pa.string()}
    convert = pyarrow.csv.ConvertOptions(column_types=types)
    table = pyarrow.csv.read_csv(io.BytesIO(text.encode()), convert_options=convert)
    rows: dict[str, list[PublishedRow]] = {}
    for line in table.drop_columns("workload").to_pylist():
        model, p99_s = line.pop("model"), line.pop("p99_latency_s")
        rows.setdefault(model, []).append(PublishedRow(p99_s=p99_s, **line))
    return rows


def outputs(shape: RequestShape, row: PublishedRow, count: int | None = None) -> Ints:
    """Answer tokens of each request of a row, or of `count` requests with the same mean."""
    limits = shape.limits
    limit = limits.get(f"{row.phase}/{row.concurrency}", limits[row.phase])
    mean = shape.burst_mean if row.burst and shape.burst_mean else float(limit)
    if row.output_tok_s is not None:
        mean = min(limit, shape.prompt * row.output_tok_s / (row.total_tok_s - row.output_tok_s))
    return spread(row.requests if count is None else count, limit, mean, shape.whole)


def words_by_model(words: Sequence[str], config: Path | None) -> list[list[str]]:
    """The words of each model to run: the typed ones if they choose a model, else all the paper's models."""
    if config or any(word.startswith(("model=", "model.")) for word in words):
        return [list(words)]
    set_keys = {word.partition("=")[0] for word in words}
    return [
        [*(word for word in subject.words if word.partition("=")[0] not in set_keys), *words]
        for subject in PUBLISHED_MODELS
    ]


def mixed_answers(shape: RequestShape, count: int, limit: int) -> Ints:
    """Answers to the limit in the model's own share; the others end at once."""
    mean = shape.whole * limit + (1 - shape.whole) * EARLY_TOKENS
    return spread(count, limit, mean, shape.whole)


def spread(count: int, limit: int, mean: float, whole: float = 1.0) -> Ints:
    """Answer tokens of `count` requests with this mean; those to the limit are spaced evenly among the
    others.

    As many run to the `limit` as the share `whole` and the mean allow; the others share the rest evenly.
    """
    total = max(round(mean * count), EARLY_TOKENS * count)
    most = (total - EARLY_TOKENS * count) // max(limit - EARLY_TOKENS, 1)
    to_limit = min(round(whole * count), most)
    tokens = np.full(count, limit)
    ends_early = np.ones(count, bool)
    ends_early[(np.arange(to_limit) + 1) * count // max(to_limit, 1) - 1] = False
    early = count - to_limit
    if early:
        left = total - to_limit * limit
        tokens[ends_early] = left // early + (np.arange(early) < left % early)
    return tokens


def played(subject: PublishedModel) -> list[PublishedRow]:
    """The rows of a model that are levels of their own."""
    return [row for row in published_rows()[subject.name] if row.left_out != AGAIN]


_NAMING = ("name", "served_name", "source", "config_json")
_SPEED = ("step_time", "posterior", "efficiency", "fitted_with")
"""Fields that name something, and those that give its speed; the others identify it."""
_SERVED = ("kv_cache", "max_context_tokens")
"""Fields that a deployment may choose: it stays that model, but is not what the paper served."""


@cache
def _loaded(*words: str) -> Experiment:
    return load(words)


def published_model_of(experiment: Experiment) -> PublishedModel | None:
    """The paper's model, if model, node, layout and lengths are the paper's; else None."""
    published = model_of(experiment)
    if published is None or experiment.progressive.lengths == "workload":
        return None
    paper = _loaded(*published.words)
    groups = ("model", "hardware", "layout")
    same = (_facts(getattr(experiment, group)) == _facts(getattr(paper, group)) for group in groups)
    return published if all(same) else None


def model_of(experiment: Experiment) -> PublishedModel | None:
    """The paper's model, whatever its name and node."""
    facts = _facts(experiment.model, *_SERVED)
    return next(
        (model for model in PUBLISHED_MODELS if _facts(_loaded(*model.words).model, *_SERVED) == facts), None
    )


def _facts(spec: Hardware | Layout | Model, *without: str) -> dict[str, object]:
    names = [each.name for each in fields(spec) if each.name not in (*_NAMING, *_SPEED, *without)]
    return {name: getattr(spec, name) for name in names}
