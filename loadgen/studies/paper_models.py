"""Recognises the MI325X paper's models in an experiment, by their facts; knows no rows, lengths or names."""

from dataclasses import fields
from functools import cache
from typing import Any

from conf import Experiment, load
from conf.specs.experiment import Hardware, Layout, Model
from loadgen.studies.published_tables import PUBLISHED_MODELS, PublishedModel

Facts = dict[str, Any]

_LABELS = (
    "name",
    "served_name",
    "source",
    "config_json",
    "step_time",
    "posterior",
    "efficiency",
    "fitted_with",
)
"""Fields that name something or give its speed; the others identify it."""
_SERVED = ("kv_cache", "max_context_tokens")
"""Fields that a deployment may choose: it stays that model, but is not what the paper served."""


def published_model_of(experiment: Experiment) -> PublishedModel | None:
    """The paper's model, if model, node, layout and lengths are the paper's; else None."""
    known = model_of(experiment)
    if known is None or experiment.progressive.lengths == "workload":
        return None
    same = _facts(experiment.model, experiment.hardware, experiment.layout) == _published(known.words)
    return known if same else None


def model_of(experiment: Experiment) -> PublishedModel | None:
    """The paper's model, whatever its name and node."""
    facts = _architecture(experiment.model)
    return next((subject for subject in PUBLISHED_MODELS if _model(subject.words) == facts), None)


@cache
def _model(words: tuple[str, ...]) -> Facts:
    return _architecture(load(words).model)


@cache
def _published(words: tuple[str, ...]) -> list[Facts]:
    known = load(words)
    return _facts(known.model, known.hardware, known.layout)


def _architecture(model: Model) -> Facts:
    return {name: value for name, value in _facts(model)[0].items() if name not in _SERVED}


def _facts(*specs: Hardware | Layout | Model) -> list[Facts]:
    return [
        {it.name: getattr(spec, it.name) for it in fields(spec) if it.name not in _LABELS} for spec in specs
    ]
