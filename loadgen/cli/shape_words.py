"""The words of `recommend`: the shapes that they name, their experiments, and commands that measure."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from analysis.recommendation.ranking import BUDGET, HIT, LAYOUT, name_of
from analysis.results.predictions import PredictionVerdict
from conf import ConfigError, Experiment, load
from conf.compose import load_groups
from conf.specs.experiment import SimulatedEngine
from conf.specs.planning import MOST_SHAPES, Recommend, Recommendation
from conf.words import group_file, groups, key_and_value
from loadgen.cli import prediction
from loadgen.cli.words import refuse
from loadgen.predict.grid import Cell, made

OWN_GROUPS = tuple(field.name for field in fields(Recommendation))
PREDICTED = ("search.lowest_qps", "search.highest_qps")
"""The words about a search that a prediction honours too; all others are of the measurements."""
MEASURED = ("search", "fleet", "run", "out", "engine.time_scale")


@dataclass(frozen=True, slots=True)
class ShapeWord:
    """A word of the service beside a recommendation: what rules about these words read."""

    word: str
    recommend: Recommend

    @property
    def group(self) -> str:
        """The first part of the key."""
        return self.word.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Shape(Cell):
    """One shape at one hit rate: a cell that `words` make of the words of the service.

    `answer` is its prediction, or the reason why there is none; None before it was predicted.
    """

    words: tuple[str, ...] = ()
    answer: PredictionVerdict | str | None = None

    @property
    def hit(self) -> float | None:
        """The prefix hit rate; None for the workload's own."""
        return self.at.get(HIT)


@dataclass(frozen=True, slots=True)
class ShapeQuestion:
    """A question about shapes: demand and margins, the words of the service, and `config`, their base."""

    specs: Recommendation
    service: tuple[str, ...]
    config: Path | None
    is_simulated: bool

    @classmethod
    def of(cls, words: Sequence[str], config: Path | None) -> "ShapeQuestion":
        """Raises ConfigError for words that no recommendation honours."""
        own = [word for word in words if word.partition("=")[0].partition(".")[0] in OWN_GROUPS]
        service = [word for word in words if word not in own]
        recommendation = load_groups(Recommendation, own)
        refuse(*(ShapeWord(key_and_value(word)[0], recommendation.recommend) for word in service))
        for layout in recommendation.recommend.layouts:
            group_file("layout", layout)  # refuses an unknown one
        # Other words may fit one layout alone; those are judged with each.
        kind = load([word for word in service if word.startswith(("engine=", "target."))], config).engine.kind
        if kind == "external":
            raise ConfigError(
                "recommend compares what could be deployed; engine=external stands already: measure it with "
                "sweep, and plan on the run with python -m analysis plan"
            )
        return cls(recommendation, tuple(service), config, kind == "simulated")

    @property
    def layouts(self) -> list[str]:
        return self.specs.recommend.layouts or groups()["layout"]

    @property
    def hits(self) -> list[float] | list[None]:
        return self.specs.recommend.hits or [None]

    @property
    def predicting(self) -> list[str]:
        """The words of the service for the engine model: a simulated engine, without what is measured."""
        measured = [word for word in self.service if {_key(word), word.partition(".")[0]} & set(MEASURED)]
        kept = [word for word in self.service if word not in measured or _key(word) in PREDICTED]
        if self.is_simulated:
            return kept
        model_keys = ("engine.constants", "engine.activation_bytes")
        kept = [word for word in kept if not word.startswith("engine") or _key(word) in model_keys]
        return [*kept, "engine=simulated"]

    def shapes(self) -> list[Shape]:
        """Every shape, those of a layout together. Raises ConfigError if there are too many."""
        pairs = product(self.layouts, self.hits)
        shapes = [shape for layout, hit in pairs for shape in self._of_layout(layout, hit)]
        if len(shapes) > MOST_SHAPES:
            raise ConfigError(
                f"{len(shapes)} shapes are more than {MOST_SHAPES}; name fewer in recommend.layouts, "
                "recommend.budgets or recommend.hits"
            )
        return shapes

    def _of_layout(self, layout: str, hit: float | None) -> Iterator[Shape]:
        at: dict[str, Any] = {LAYOUT: layout, BUDGET: 0} | ({} if hit is None else {HIT: hit})
        words = f"layout={layout}", *(() if hit is None else (f"workload.prefix_hit={hit:g}",))
        own, refused = self._predicted(words)
        if own is None:
            yield Shape(layout, at, None, refused, words)
            return
        # Those of a step of the engines that compute prompts.
        engine, computing = own.engine, own.layout.prefill_side or own.layout
        assert isinstance(engine, SimulatedEngine)
        own_tokens = computing.max_num_batched_tokens or engine.max_num_batched_tokens
        # Every engine of a node gets the budget.
        sides = ["layout.prefill.max_num_batched_tokens"] if own.layout.prefill else []
        for budget in self.specs.recommend.budgets or around(own_tokens):
            has_it = budget == own_tokens and self.is_simulated
            keys = [] if has_it else ["layout.max_num_batched_tokens", *sides]
            all_words = *words, *(f"{key}={budget}" for key in keys)
            name = name_of(layout, budget)
            yield Shape(name, at | {BUDGET: budget}, *self._predicted(all_words), all_words)

    def _predicted(self, words: Sequence[str]) -> tuple[Experiment | None, str]:
        """The experiment of a shape's words for the engine model, or the reason why there is none."""
        return made(partial(prediction.checked, [*self.predicting, *words], self.config))

    def command(self, verb: str, words: Sequence[str]) -> str:
        """A command that measures, as it is typed."""
        base = ["--config", str(self.config)] if self.config else []
        own = [word for word in self.service if _key(word) != "run"]  # a name is taken once
        return shlex.join(["python", "-m", "loadgen", verb, *words, *own, *base])


def around(tokens: int) -> list[int]:
    """The budgets that are compared where none are named."""
    return [max(1, tokens // 2), tokens, 2 * tokens]


def _key(word: str) -> str:
    return word.partition("=")[0]
