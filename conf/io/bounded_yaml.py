"""Reads YAML, any of it, within bounds of time and memory, also if it refers to itself."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import yaml

MOST_CHARACTERS = 2**22
"""Most characters of a file, and of its texts with every alias expanded (our choice)."""
MOST_NODES = 10_000
"""Most values and keys of a file, aliases expanded: three times those of 3000 addresses (our choice)."""
MOST_DEPTH = 40
"""Most levels of a file; our own have six (our choice)."""


_EXPONENT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
"""Numbers such as 8e9, which YAML 1.1 takes for texts."""


class LOADER(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """That of libyaml where it is there, which is six times as fast.

    8e9 is a number and a date a text. What JSON has not, such as a set, and a key that is there twice are
    errors.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_document(self, node: yaml.Node) -> Any:
        nodes = [node]
        for each in nodes:  # `refuse_large` bounds their number, aliases expanded
            if isinstance(each, yaml.MappingNode):
                _refuse_twice(key for key, _ in each.value if isinstance(key, yaml.ScalarNode))
                nodes += [value for _, value in each.value]
            elif isinstance(each, yaml.SequenceNode):
                nodes += each.value
        return super().construct_document(node)


def _refuse_twice(keys: Iterable[yaml.ScalarNode]) -> None:
    """Raise ConstructorError for a key that a mapping has twice, which is not quoted: it may be a secret."""
    seen = set[str]()
    for key in keys:
        if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
            raise yaml.constructor.ConstructorError(
                problem="a key is there twice", problem_mark=key.start_mark
            )
        seen.add(key.value)


class DUMPER(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """That of libyaml where it is there; puts texts in quotes that the loader would take for numbers."""


for _class in (LOADER, DUMPER):
    _class.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
for _kind in ("set", "timestamp", "binary", "omap", "pairs"):
    LOADER.add_constructor(f"tag:yaml.org,2002:{_kind}", LOADER.construct_undefined)


def read(text: str) -> Any:
    """The tree of a YAML text.

    Raises yaml.YAMLError or ValueError for a text that is no YAML, too large, too deep or refers to itself.
    """
    refuse_large(text)
    try:
        return yaml.load(text, LOADER)
    except LookupError:  # of the library, which quotes the value
        raise ValueError("a value is not of the kind that its tag says") from None


def refuse_large(text: str) -> None:
    """Raise as `read` does, without making the tree. An alias counts as its expansion."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
    nodes = characters = 0
    opened: list[tuple[str | None, int, int]] = []
    sizes: dict[str | None, tuple[int, int]] = {}
    for event in yaml.parse(text, LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, *before = opened.pop()
            sizes[anchor] = nodes - before[0], characters - before[1]
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [anchor for anchor, *_ in opened]:
                raise ValueError("it holds an alias of itself")
            more = sizes.get(event.anchor, (0, 0))
            nodes, characters = nodes + more[0], characters + more[1]
        elif isinstance(event, yaml.ScalarEvent):
            sizes[event.anchor] = 1, len(event.value)
            nodes, characters = nodes + 1, characters + len(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, nodes, characters))
            nodes += 1
        if len(opened) + isinstance(event, yaml.ScalarEvent) > MOST_DEPTH:
            raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")
        if nodes > MOST_NODES or characters > MOST_CHARACTERS:
            raise ValueError(
                f"it means more than {MOST_NODES} values or {MOST_CHARACTERS} characters, aliases expanded"
            )


def bounded_text(path: Path) -> str:
    """The text of a file. Raises ValueError, also for a long one, and OSError, also for a folder."""
    if path.exists() and not (path.is_file() or path.is_fifo() or path.is_dir()):
        raise ValueError("it is no file")
    with path.open("rb") as file:
        content = file.read(MOST_CHARACTERS + 1)
    if len(content) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS} bytes")
    return content.decode()
