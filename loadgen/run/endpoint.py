"""Asks an endpoint for its models, and reads the key and the CA certificates; knows one URL at a time."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from conf import ConfigError, Experiment
from conf.compose import UNKNOWN
from conf.io.http_get import Access, AskError, ask, certificates
from conf.io.one_line import one_line, reason
from conf.io.secret import Secret
from conf.specs.routing import Endpoints

READY_TIMEOUT_S = 10.0
NAMES_TIMEOUT_S = 1.0
"""A command line waits no longer for the names of an endpoint's models; the run itself has more patience."""
MOST_NAMES = 8
"""Most names in an error (our choice)."""
NO_SUCH_PATH = (404, 405, 501)
"""HTTP statuses of a server that has no list of models."""
MOST_LEVELS = 16
"""Most levels of lists and objects in a model's card; vLLM's has three (our choice)."""


class TargetError(RuntimeError):
    """The service could not be deployed or reached; `last_words` are lines of the processes that failed."""

    def __init__(self, message: str, last_words: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.last_words = tuple(last_words)


def _api_key(variable: str) -> Secret | None:
    """The key that the environment holds under this name; no name means no key.

    Raises ConfigError, which quotes neither the key nor the name: that may be a key in the wrong place.
    """
    if not variable:
        return None
    if variable not in os.environ:
        raise ConfigError(
            "target.api_key_env names no environment variable; export the key in one and give its name"
        )
    try:
        return Secret(os.environ[variable])
    except ValueError as error:
        raise ConfigError(f"target.api_key_env: {error}; export the key alone") from error


def access_to(target: Endpoints) -> Access:
    """The key and the CA certificates that `target` names. Raises ConfigError."""
    try:
        ca = certificates(Path(target.ca_file)) if target.ca_file else ""
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"target.ca_file: {reason(error)}; give the CA's certificates in PEM form"
        ) from error
    return Access(_api_key(target.api_key_env), ca)


def models_of(url: str, access: Access, within_s: float = READY_TIMEOUT_S) -> list[dict[str, Any]]:
    """The models a server says it serves. Raises TargetError when it does not answer as one in time."""
    try:
        answer = ask(f"{url}/v1/models", within_s, access=access)
        if not answer.is_success:
            remedy = "; for a server without this list add target.list_models=false"
            raise AskError(answer.said + (remedy if answer.status in NO_SUCH_PATH else ""))
        tree = json.loads(answer.body)
        cards = tree.get("data") if isinstance(tree, dict) else None
        if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
            raise ValueError("no list of models under 'data'")
        _refuse_unfit(cards)
        return cards
    except (AskError, ValueError, RecursionError) as error:
        raise TargetError(f"{url}/v1/models does not answer as a model server: {error}") from error


def with_served_model(experiment: Experiment, is_named: bool) -> Experiment:
    """The experiment with the name of the one model that all its endpoints serve.

    With `is_named` the user gave the name, and it must be among theirs. An endpoint that does not answer, or
    lists no models, changes nothing here: the run says so. Raises ConfigError with the names that are served.
    """
    target, model = experiment.target, experiment.model
    if not target.list_models:
        return experiment
    names = _names_at(tuple(target.bases), target.api_key_env, target.ca_file)
    if model.served_name in names or not names:
        return experiment
    shown = one_line(", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else ""))
    if is_named or len(names) > 1:
        what = f"does not serve {model.served_name}" if is_named else f"serves {len(names)} models"
        raise ConfigError(f"{target.bases[0]} {what}; choose model=NAME from: {shown}")
    name = names[0] if model.name == UNKNOWN else model.name
    return replace(experiment, model=replace(model, name=name, served_name=names[0]))


@lru_cache(maxsize=1)
def _names_at(urls: Sequence[str], api_key_env: str, ca_file: str) -> list[str]:
    """The models that all endpoints serve, read once for all cells of a grid; none if one does not answer."""
    access = access_to(Endpoints(list(urls), api_key_env=api_key_env, ca_file=ca_file))
    try:
        lists = [models_of(url, access, NAMES_TIMEOUT_S) for url in urls]
    except TargetError:
        return []
    served = [[str(card.get("id", "")) for card in cards] for cards in lists]
    return [name for name in served[0] if name and all(name in others for others in served)]


def _refuse_unfit(tree: Any, levels: int = MOST_LEVELS) -> None:
    """Raise ValueError for what the manifest could not keep: endless nesting, and halves of letters."""
    if levels == 0:
        raise ValueError("the models are nested too deeply")
    if isinstance(tree, str):
        tree.encode()
    elif isinstance(tree, dict | list):
        for part in [*tree, *tree.values()] if isinstance(tree, dict) else tree:
            _refuse_unfit(part, levels - 1)
