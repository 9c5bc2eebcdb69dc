"""Trees of plain values with their types checked against the specs, kept so that none is checked twice."""

import copy
import dataclasses
import pickle
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from conf.io.nearest import hint, nearest
from conf.misfit import Fields, fields_of, misfit, unknown
from conf.specs import experiment as schema
from conf.words import ROOT, ConfigError

ENGINES: dict[str, type[schema.Engine]] = {
    "simulated": schema.SimulatedEngine,
    "vllm": schema.VllmEngine,
    "vllm_cpu": schema.VllmEngine,
    "vllm_emulated": schema.EmulatedEngine,
    "external": schema.ExternalEngine,
}


@dataclasses.dataclass(frozen=True)
class _Checked:
    """A tree whose types were checked: texts of its groups, the typed tree as a pickle, the keys it lacks."""

    texts: dict[str, str]
    node: bytes
    lacks: frozenset[str]

    def differs(self, texts: dict[str, str]) -> set[str]:
        """Groups that have another text here, or stand on one side only."""
        return {group for group, _ in texts.items() ^ self.texts.items()}

    def without(self, groups: set[str], empty: Any) -> Any:
        """A copy of the typed tree in which these groups are as in the `empty` one."""
        node = pickle.loads(self.node)
        with read_write(node):
            for group in groups:
                node[group] = MISSING if OmegaConf.is_missing(empty, group) else empty[group]
        return node


_checked: deque[_Checked] = deque(maxlen=32)
"""The newest trees whose types were checked."""


def _types(tree: dict[str, Any], base: Path | None) -> Fields:
    """The types of the groups, with that of the tree's engine. Raises ConfigError for an unknown one."""
    specs = fields_of(schema.Experiment) or {}
    if strange := next((why for name in tree if (why := unknown(specs, str(name)))), ""):
        raise ConfigError(f"{base}: {strange}" if base else strange)
    kind = (tree.get("engine") or {}).get("kind")
    if kind is None:
        raise ConfigError(f"{base or ROOT}: engine is missing; start from a whole config.yaml")
    if kind not in list(ENGINES):
        near = hint(nearest(str(kind), list(ENGINES)))
        raise ConfigError(f"unknown engine kind '{kind}'{near}; available: {', '.join(ENGINES)}")
    return {**specs, "engine": ENGINES[kind]}


@lru_cache
def _empty(engine: type[schema.Engine]) -> Any:
    """The typed tree of an experiment with this kind of engine, without values."""
    return OmegaConf.merge(OmegaConf.structured(schema.Experiment), {"engine": OmegaConf.structured(engine)})


def typed_tree(tree: dict[str, Any], base: Path | None) -> tuple[bytes, frozenset[str]]:
    """The tree with its types checked, as a pickle, and the keys that it lacks. Raises ConfigError.

    Groups that stand alike in a tree that was checked before are taken from it: to check all anew takes
    several times as long as to check the one or two in which experiments differ. A pickle gives each caller a
    tree of its own in less than half of the time of a copy.
    """
    root = _types(tree, base)
    texts = {group: repr(values) for group, values in tree.items()}
    near = min(_checked, key=lambda other: len(other.differs(texts)), default=None)
    differs = near.differs(texts) if near else set(texts)
    if near and not differs:
        return near.node, near.lacks
    empty = _empty(root["engine"])
    node = near.without(differs, empty) if near else copy.deepcopy(empty)
    try:
        node = merged(node, root, "a group", {group: tree[group] for group in tree if group in differs})
    except ConfigError as error:
        raise ConfigError(f"{base}: {error}" if base else str(error)) from error
    done = pickle.dumps(node, pickle.HIGHEST_PROTOCOL)
    # To walk through all keys takes longer than all else here.
    lacks = frozenset(OmegaConf.missing_keys(node) if MISSING.encode() in done else ())
    _checked.append(_Checked(texts, done, lacks))
    return done, lacks


def merged(node: Any, kind: Any, key: str, values: Any) -> Any:
    """`node`, of the type `kind`, with `values`. Raises ConfigError that names `key` or one inside it."""
    try:
        # A copy of `node` would cost most of a start-up; a merge walks through all that its target holds.
        group = next(iter(values)) if len(values) == 1 else ""
        inside = group and not OmegaConf.is_missing(node, group) and OmegaConf.is_dict(node[group])
        if inside and isinstance(values[group], Mapping):
            OmegaConf.unsafe_merge(node[group], values[group])
            return node
        return OmegaConf.unsafe_merge(node, values)
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        tree = OmegaConf.to_container(values) if isinstance(values, DictConfig) else values
        raise ConfigError(misfit(kind, tree, "") or f"{key}: {one_line_of(error)}") from error


def one_line_of(error: Exception) -> str:
    """An error of omegaconf, which puts the key on a line of its own, as one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    return f"{key}: {lines[0]}" if key and key not in lines[0] else lines[0]
