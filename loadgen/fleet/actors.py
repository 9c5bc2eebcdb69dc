"""Load actors as the fleet calls them, wherever they run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from loadgen.fleet.load_actor import Place


class ActorError(RuntimeError):
    """A load actor cannot answer any more; the message says why in one line."""


class ActorFailedError(ActorError):
    """A method of a load actor raised; the actor itself lives."""


class ActorUnreachableError(ActorError):
    """A call did not reach a load actor, which may live."""


class Reply(Protocol):
    """The answer to a call, on its way."""

    def result(self, timeout: float) -> Any:
        """Wait up to `timeout` seconds for it. Raises TimeoutError or ActorError."""
        ...


class Actor(Protocol):
    """A `LoadActor` in another process."""

    def call(self, method: str, *words: Any) -> Reply:
        """Begin a method of the actor's."""
        ...

    def kill(self) -> None:
        """End its process at once."""
        ...


class Actors(Protocol):
    """The place where load actors run."""

    def start(self) -> Actor:
        """Begin the process of another one."""
        ...

    def fetch_left(self, places: Sequence[Place], folder: Path, timeout_s: float) -> list[str]:
        """Bring the shards of lost load actors into `folder`; returns where those are that cannot be had."""
        ...
