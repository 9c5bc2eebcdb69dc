"""Which versions of vLLM know an argument, a value, a compilation key or a variable; the table is YAML."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from conf.io import bounded_yaml
from conf.io.one_line import hint, nearest

Version = tuple[int, int, int]

OLDEST: Version = (0, 9, 2)
NEWEST: Version = (0, 33, 0)
"""The versions whose sources were read. Others are served with a note."""
NEVER: Version = (999, 0, 0)
NEWEST_READ: Version = (0, 32, 0)
"""The newest version whose parser's names were read."""


@dataclass(frozen=True, slots=True)
class Known:
    """A name that versions `first` to `last` know, both included; None is an end that was not read.

    A key of compilation_config did something up to `last`, or never, and from `rejected` on it is an error.
    """

    name: str
    remedy: str
    first: Version | None = None
    last: Version | None = None
    rejected: Version = NEVER

    def known_to(self, version: Version) -> bool:
        return (self.first is None or version >= self.first) and (self.last is None or version <= self.last)

    def unknown(self, version: Version) -> str:
        """Sentence that `version` does not know the name, with the last or first version that does."""
        if self.last is not None and version > self.last:
            return f"vLLM {text(version)} does not know it (last in {text(self.last)})"
        assert self.first is not None
        return f"vLLM {text(version)} does not know it yet (first in {text(self.first)})"


@cache
def flags() -> Mapping[str, Any]:
    """The table vllm_flags.yaml, read once; the names of `values` are ARGUMENT=VALUE."""
    tree = bounded_yaml.read(Path(__file__).with_suffix(".yaml").read_text())
    tables = {kind: _rows(tree[kind]) for kind in ("arguments", "values", "compilation_keys", "variables")}
    names = {*tree["argument_names"].split(), *tree["arguments"]}
    return {**tables, "never_read": tree["never_read"], "argument_names": frozenset(names)}


def _rows(rows: Mapping[str, Mapping[str, str]]) -> tuple[Known, ...]:
    return tuple(
        Known(name, **{key: word if key == "remedy" else parse(word) for key, word in row.items()})  # type: ignore[arg-type]
        for name, row in rows.items()
    )


def parse(version: str) -> Version:
    """0.14.1 of "0.14.1+rocm641" or "0.14.1rc2"; 0.33.0 of "0.33". Raises ValueError for anything else."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", version.strip())
    if not match:
        raise ValueError(f"vllm_version={version} is not a version; write it as {text(NEWEST)}")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def text(version: Version) -> str:
    return ".".join(map(str, version))


def argument_name(word: str) -> str:
    """vLLM's Python name of an argument that may be written as its flag."""
    return word.strip().lstrip("-").replace("-", "_")


def knows(argument: str, version: Version) -> bool:
    """True if a vLLM of this version takes an argument, as far as the table says."""
    return all(known.known_to(version) for known in flags()["arguments"] if known.name == argument)


def rejected(args: Mapping[str, Any], version: Version) -> list[str]:
    """Sentences with a remedy about what keeps a vLLM of this version from starting."""
    given = {*args, *(f"{name}={value}" for name, value in args.items())}
    listed = (*flags()["arguments"], *flags()["values"])
    keys = compilation(args)
    return [
        f"engine.args.{known.name}: {known.unknown(version)}; {known.remedy}"
        for known in listed
        if known.name in given and not known.known_to(version)
    ] + [
        f"compilation_config.{key.name}: vLLM {text(version)} rejects it, as do all from "
        f"{text(key.rejected)} on; {key.remedy}"
        for key in flags()["compilation_keys"]
        if key.name in keys and version >= key.rejected
    ]


def ignored(args: Mapping[str, Any], env: Mapping[str, str], version: Version) -> list[str]:
    """Sentences with a remedy about what has no effect on a vLLM of this version."""
    keys = compilation(args)
    lines = [
        f"compilation_config.{key.name} has no effect in vLLM {text(version)}; {key.remedy}"
        for key in flags()["compilation_keys"]
        if key.name in keys and version < key.rejected and (key.last is None or version > key.last)
    ]
    lines += [
        f"{known.name} is ignored: {known.unknown(version)}; {known.remedy}"
        for known in flags()["variables"]
        if known.name in env and not known.known_to(version)
    ]
    return lines + [
        f"{name} {why}; leave it out" for name, why in flags()["never_read"].items() if name in env
    ]


def unknown_variables(env: Mapping[str, str], version: Version) -> list[str]:
    """Variables in `env` that a vLLM of this version does not know although they look like its own."""
    return [known.name for known in flags()["variables"] if known.name in env and not known.known_to(version)]


def misspelt(names: Iterable[str], version: Version) -> str:
    """One line on the first name that is no argument of vLLM; empty if there is none.

    A version after those that were read may have new arguments: then a name is refused only if it resembles
    a known one.
    """
    known = sorted(flags()["argument_names"])
    for name in unread(names):
        near = nearest(name, known)
        if near or version <= NEWEST_READ:
            return (
                f"engine.args.{name} is no argument of vLLM {text(version)}{hint(near)}; "
                "vllm serve --help=all prints them all"
            )
    return ""


def unread(names: Iterable[str]) -> list[str]:
    """Names that are no argument of any version that was read."""
    return [name for name in names if name not in flags()["argument_names"]]


def compilation(args: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of compilation_config, which may be written as JSON; empty for a bare level."""
    return mapping("compilation_config", args.get("compilation_config"))


def mapping(name: str, value: Any) -> dict[str, Any]:
    """The keys of the argument `name`, which may be written as JSON; empty if it is no mapping."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"engine.args.{name}={value} is not JSON; write a mapping") from error
    return dict(value) if isinstance(value, Mapping) else {}
