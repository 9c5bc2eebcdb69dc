"""Asks an endpoint for its models and checks the key; knows one URL at a time."""

import json
import os
from collections.abc import Sequence
from typing import Any

from conf import ConfigError
from conf.io.http_get import OK, AskError, ask
from conf.io.secret import Secret

READY_TIMEOUT_S = 10.0
MOST_LEVELS = 16
"""Most levels of lists and objects in a model's card; vLLM's has three (our choice)."""


class TargetError(RuntimeError):
    """The service could not be deployed or reached; `last_words` are lines of the processes that failed."""

    def __init__(self, message: str, last_words: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.last_words = tuple(last_words)


def api_key(variable: str) -> Secret | None:
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


def models_of(url: str, key: Secret | None, within_s: float = READY_TIMEOUT_S) -> list[dict[str, Any]]:
    """The models a server says it serves. Raises TargetError when it does not answer as one in time."""
    try:
        answer = ask(f"{url}/v1/models", within_s, key=key)
        if answer.status != OK:
            raise AskError(answer.said)
        return _cards(json.loads(answer.body))
    except (AskError, ValueError, RecursionError) as error:
        raise TargetError(f"{url}/v1/models does not answer as a model server: {error}") from error


def _cards(tree: Any) -> list[dict[str, Any]]:
    cards = tree.get("data") if isinstance(tree, dict) else None
    if not isinstance(cards, list) or not all(isinstance(card, dict) for card in cards):
        raise ValueError("no list of models under 'data'")
    _refuse_unfit(cards)
    return cards


def _refuse_unfit(tree: Any, levels: int = MOST_LEVELS) -> None:
    """Raise ValueError for what the manifest could not keep: endless nesting, and halves of letters."""
    if levels == 0:
        raise ValueError("the models are nested too deeply")
    if isinstance(tree, str):
        tree.encode()
    elif isinstance(tree, dict | list):
        for part in [*tree, *tree.values()] if isinstance(tree, dict) else tree:
            _refuse_unfit(part, levels - 1)
