"""Reads untrusted YAML within bounds of time and memory, also if it refers to itself.

Knows YAML and no key; every YAML file is read through this module.
"""

from pathlib import Path
from typing import Any

import yaml

MOST_CHARACTERS = 2**22
"""Most characters of a file, and of its texts with every alias expanded (our choice)."""
MOST_NODES = 10_000
"""Most values and keys of a file, aliases expanded: three times those of 3000 addresses (our choice)."""
MOST_DEPTH = 40
"""Most levels of a file; our own have six (our choice)."""


class TooLargeError(ValueError):
    """The text is too large, too deep or refers to itself; the message is one line."""


class _Loader(yaml.SafeLoader):
    """A safe loader that counts the nodes it makes, an alias as its expansion."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._characters = self._depth = 0
        self._open: set[str] = set()
        self._sizes: dict[str, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor = event.anchor
        if isinstance(event, yaml.AliasEvent):
            if anchor in self._open:
                raise TooLargeError("it holds an alias of itself")
            self._count(*self._sizes.get(anchor, (0, 0)))
            return super().compose_node(parent, index)
        before = self._nodes, self._characters
        self._count(1, len(event.value) if isinstance(event, yaml.ScalarEvent) else 0)
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise TooLargeError(f"it is nested more than {MOST_DEPTH} levels deep")
        if anchor:
            self._open.add(anchor)
        node = super().compose_node(parent, index)
        if anchor:
            self._open.discard(anchor)
            self._sizes[anchor] = self._nodes - before[0], self._characters - before[1]
        self._depth -= 1
        return node

    def _count(self, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        if self._nodes > MOST_NODES or self._characters > MOST_CHARACTERS:
            raise TooLargeError(
                f"it means more than {MOST_NODES} values or {MOST_CHARACTERS} characters, aliases expanded"
            )


def read(text: str) -> Any:
    """The tree of a YAML text, as `yaml.safe_load` makes it.

    Raises TooLargeError (a ValueError) for a text that is too large, too deep or refers to itself, and
    yaml.YAMLError or ValueError for one that is no YAML.
    """
    loader = _bounded(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def refuse_large(text: str) -> None:
    """Raise as `read` does, without making the tree."""
    loader = _bounded(text)
    try:
        loader.get_single_node()
    finally:
        loader.dispose()


def bounded_text(path: Path) -> str:
    """The text of a file. Raises TooLargeError for a long one, OSError (also for a folder) and ValueError."""
    if path.exists() and not (path.is_file() or path.is_fifo() or path.is_dir()):
        raise TooLargeError("it is no file")
    with path.open("rb") as file:
        content = file.read(MOST_CHARACTERS + 1)
    if len(content) > MOST_CHARACTERS:
        raise TooLargeError(f"it has more than {MOST_CHARACTERS} bytes")
    return content.decode()


def _bounded(text: str) -> _Loader:
    if len(text) > MOST_CHARACTERS:
        raise TooLargeError(f"it has more than {MOST_CHARACTERS} characters")
    return _Loader(text)
