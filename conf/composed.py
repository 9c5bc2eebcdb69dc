"""Turns YAML groups and `key=value` words into an `Experiment`.

Precedence: dataclass defaults < the chosen file of each group < the files that `model.config_json` and
`engine.constants` name < `key=value`. A bare group name chooses a file (`workload=smoke`), a dotted key
sets a value (`slo.ttft_p90_ms=1500`); the order of the words never matters.
"""

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from conf import bound_words, constant_keys, constants, kernels, named_files
from conf.io.bounded_yaml import refuse_large
from conf.io.one_line import one_line
from conf.misfit import Fields, fields_of, is_text, type_of, unknown
from conf.misfit import keys as walked
from conf.specs import experiment as schema
from conf.specs import planning, recommendation
from conf.specs.conversation import overruled
from conf.typed_trees import ENGINES, merged, one_line_of, typed_tree
from conf.words import ROOT, ConfigError, group_file, groups, key_and_value, refuse_twice, split_words

DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The one of libyaml where it is there: many times as fast."""
KERNEL_KEYS = {"engine.kernels", "engine.attention_backend", "model.fitted_with", "model.kv_lora_rank"}
"""Keys that decide which kernels an engine has, and those of the fit."""
FIXED = dataclasses.asdict(schema.Lengths(1))
"""Every field of a fixed length but its mean."""
_specs: dict[tuple[str, str | None], Any] = {}
"""Specs by group and file of ours: to make that of a model takes as long as to make all others."""
Groups = TypeVar("Groups", planning.Planning, recommendation.Recommendation)
UNKNOWN = "unknown"
NAMED_GROUPS = ("model", "hardware", "layout", "routing")
"""Groups of which the defaults say nothing about external endpoints."""
MOST_NAME_BYTES = 200
"""Most bytes of a run's name: file systems take 255, and names of parts and unfinished files are longer."""


def load(words: Sequence[str] = (), base: Path | None = None) -> schema.Experiment:
    """The experiment of `words` (`key=value` each) over the defaults or over a saved tree `base`.

    Raises ConfigError with one line: an unknown key, choice or value, or specs that do not fit.
    """
    choices, values = split_words(words)
    values = bound_words.spelled(values)
    tree = named_files.read_saved(base) if base else {}
    if isinstance(tree.get("slo"), dict):
        known = bound_words.nested(tree["slo"])
        tree["slo"] = (
            known | {"at_most_ms": {}} if any(w.startswith(bound_words.LIST) for w in words) else known
        )
    calibration = tree.get("engine", {}).get("constants")
    try:
        if base:
            typed, missing = _saved(base, tree, choices, values)
        else:
            typed, missing = _defaults(*choices.items())
        build = _built.__wrapped__ if _names_a_file(tree, values) else _built
        built = build(typed, missing, tuple(values), tuple(choices.items()), base)
        experiment: schema.Experiment = pickle.loads(built)
    except ConfigError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(one_line_of(error)) from error
    if any(word.startswith("run=") for word in values):
        refuse_name("" if "run=" in values else experiment.run)
    dropped = calibration and getattr(experiment.engine, "constants", None) == ""
    if dropped and not {"model", "hardware"} <= set(choices):
        raise ConfigError(
            f"engine.constants={calibration} is dropped but {base} holds its values: also choose model=NAME "
            "hardware=NAME"
        )
    return experiment


def refuse_name(run: str | None) -> None:
    """Raise ConfigError for a `run` that cannot name a folder within `out`; None names none."""
    if run is None:
        return
    if run in ("", ".", "..") or set(run) & set("/\\="):
        raise ConfigError(f"run={one_line(run)} is no name of a folder in out; give one without / \\ and =")
    if not run.isprintable() or run != run.strip() or run.startswith("-"):
        raise ConfigError("run=... has control characters or begins or ends oddly; give a plain name")
    if len(run.encode(errors="replace")) > MOST_NAME_BYTES:
        raise ConfigError(f"run={run[:20]}... is longer than {MOST_NAME_BYTES} bytes; give a shorter name")


def load_planning(words: Sequence[str]) -> planning.Planning:
    """The demand and margins of a plan, from words demand.* and plan.* over the defaults.

    Raises ConfigError with one line: an unknown key, a value of the wrong kind, or impossible rates.
    """
    return _of_groups(planning.Planning, words)


def load_recommendation(words: Sequence[str]) -> recommendation.Recommendation:
    """The demand, margins and shapes of a recommendation, from words demand.*, plan.* and recommend.*.

    Raises ConfigError as `load_planning` does.
    """
    return _of_groups(recommendation.Recommendation, words)


def _of_groups(kind: type[Groups], words: Sequence[str]) -> Groups:
    """A spec of groups from words over the defaults. Raises ConfigError."""
    groups_of_it: dict[str, Any] = {field.name: {} for field in dataclasses.fields(kind)}
    node = OmegaConf.merge(OmegaConf.structured(kind), groups_of_it)
    root = fields_of(kind) or {}
    for word in words:
        key, _ = key_and_value(word)
        parsed = _parse(root, key, word)
        if why := unknown(root, key, OmegaConf.select(parsed, key)):
            raise ConfigError(why)
        node = merged(node, kind, key, parsed)
    refuse_twice(words)
    try:
        return cast(Groups, OmegaConf.to_object(node))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(one_line_of(error)) from error


def dump(experiment: schema.Experiment) -> str:
    """The experiment as YAML, which `load(base=...)` reads back as an equal one."""
    return yaml.dump(dataclasses.asdict(experiment), Dumper=DUMPER, sort_keys=False, allow_unicode=True)


@lru_cache
def preset(group: str, name: str) -> Mapping[str, Any]:
    """The values of a file of a group and the defaults of its other keys; empty if there is no such file."""
    if name not in groups()[group]:
        return {}
    return cast(dict[str, Any], OmegaConf.to_container(_file(group, name)))


def _file(group: str, name: str) -> Any:
    """The typed tree of a file of a group."""
    return pickle.loads(_defaults((group, name))[0])[group]


@lru_cache(maxsize=256)
def _defaults(*choices: tuple[str, str]) -> tuple[bytes, frozenset[str]]:
    """The typed tree of the defaults with these files of their groups, all of them ours; see `typed_tree`."""
    tree = dict(_own(ROOT / "config.yaml"))
    return typed_tree(_chosen(tree, {**tree.pop("defaults"), **dict(choices)}), None)


def _saved(
    base: Path, tree: dict[str, Any], choices: Mapping[str, str], values: Sequence[str]
) -> tuple[bytes, frozenset[str]]:
    """The typed tree of an experiment saved in `base`, with other files of the chosen groups."""
    renewed = set(choices) | {
        word.partition(".")[0] for word in values if _key(word) in named_files.NAMED_FILES
    }
    if choices.get("engine", "external") != "external":
        tree = _renamed(tree)
    tree = _chosen(tree, choices)
    if renewed & {"engine", "hardware", "model"} and isinstance(tree.get("engine"), dict):
        tree["engine"].pop("constants_covariance", None)
    return typed_tree(tree, base)


def _renamed(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of external endpoints for an engine of ours: unnamed groups are those of the defaults."""
    defaults = _own(ROOT / "config.yaml")["defaults"]
    files = {group: _own(group_file(group, defaults[group])) for group in NAMED_GROUPS}
    unnamed = [group for group in NAMED_GROUPS if (tree.get(group) or {}).get("name") == UNKNOWN]
    if (tree.get("engine") or {}).get("kind") == "external" and _is_served_as(tree.get("model") or {}, files):
        unnamed.append("model")
    return tree | {group: {**tree[group], "name": files[group]["name"]} for group in unnamed}


def _is_served_as(model: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> bool:
    """True of a model named by its served name alone: what else it has is of the default's file."""
    names = ("name", "served_name")
    facts = {
        key: value for key, value in files["model"].items() if key not in (*names, "step_time", "posterior")
    }
    return model.get("name") == model.get("served_name") and facts.items() <= model.items()


def _names_a_file(tree: Mapping[str, Any], values: Sequence[str]) -> bool:
    """True where a saved tree or a word names a file of further values, which may change."""
    named = named_files.NAMED_FILES
    saved = ((tree.get(group) or {}).get(name) for group, _, name in (key.partition(".") for key in named))
    return any(_key(word) in named for word in values) or any(saved)


def _chosen(tree: dict[str, Any], choices: Mapping[str, str]) -> dict[str, Any]:
    return tree | {group: _own(group_file(group, name)) for group, name in choices.items()}


@lru_cache
def _own(path: Path) -> dict[str, Any]:
    """The tree of a file of ours, which nobody changes."""
    return named_files.read(path)


def _key(word: str) -> str:
    return word.partition("=")[0]


@lru_cache(maxsize=1024)
def _built(
    typed: bytes,
    lacks: frozenset[str],
    values: tuple[str, ...],
    choices: tuple[tuple[str, str], ...],
    base: Path | None,
) -> bytes:
    """The pickled result of `_build` for a pickled tree: every caller gets an object of its own.

    Making an experiment of a tree takes ten times as long as reading it from a pickle.
    """
    return pickle.dumps(_build(typed, lacks, values, dict(choices), base))


def _build(
    typed: bytes, lacks: frozenset[str], values: Sequence[str], choices: Mapping[str, str], base: Path | None
) -> schema.Experiment:
    """The experiment of a pickled typed tree, which `lacks` some keys, and words.

    Over a `base`, groups without a choice keep its values.
    """
    node = pickle.loads(typed)
    kind, keys = node.engine.kind, [_key(word) for word in values]
    root = {**(fields_of(schema.Experiment) or {}), "engine": ENGINES[kind]}
    chosen = set(choices) if base else set(groups())
    chosen |= {key.partition(".")[0] for key in keys if key in named_files.NAMED_FILES}
    if missing := lacks - set(keys):
        first = next(name for name, _ in walked(root) if name in missing)
        raise ConfigError(f"{base or ROOT}: {first} is missing; give it, or start from a whole config.yaml")
    words = _parsed(root, keys, values)
    if kind == "external" and not base:
        node = merged(node, root, "a group", _unsaid(choices, words))
    node = _with_named_files(node, root, words, chosen)
    node = _with_kernels(node, root, words, chosen)
    for key in keys:
        if exact := constant_keys.exact(node, key):
            node = merged(node, root, key, exact)
    for key, said in words:
        node = merged(node, root, key, said)
    _refuse_overruled(node, [said for _, said in words])
    if node.engine.kind != kind:
        raise ConfigError("engine.kind cannot be set; choose a file with engine=NAME")
    try:
        if base or any(map(_of_layout, keys)):
            node = _with_own_layout_name(node, root, keys)
        names_a_file = any(OmegaConf.select(node, key) for key in named_files.NAMED_FILES)
        is_ours = not (base or kind == "external" or names_a_file)
        changed = {"engine", "layout", *(key.partition(".")[0] for key in keys)} if is_ours else set(node)
        files = {**_own(ROOT / "config.yaml")["defaults"], **choices}
        experiment = schema.Experiment(
            **{name: _spec(node, name, None if name in changed else files.get(name, "")) for name in node}
        )
    except ValueError:
        _refuse_constant(node)
        raise
    constants.check_correlations(experiment)
    return experiment


def _spec(node: Any, name: str, file: str | None) -> Any:
    """The spec of a group or a key; anew for None, else that of this file of ours, or of the defaults."""
    if file is None or (name, file) not in _specs:
        made = OmegaConf.to_object(node[name]) if OmegaConf.is_config(node[name]) else node[name]
        _specs[name, file] = made
    return _specs[name, file]


def _unsaid(choices: Mapping[str, str], words: Sequence[tuple[str, Any]]) -> dict[str, dict[str, str]]:
    """Names of the groups of external endpoints that no word chose: the defaults were not measured."""
    names = {group: {"name": UNKNOWN} for group in NAMED_GROUPS if group not in choices}
    served = next((OmegaConf.select(said, key) for key, said in words if key == "model.served_name"), "")
    if served and "model" in names:
        names["model"] = {"name": served}
    return names


def _with_own_layout_name(node: Any, root: Fields, keys: Sequence[str]) -> Any:
    """The tree with its layout named by the engines where these are no longer those of the named file."""
    name, files = node.layout.name, groups()["layout"]
    if name == UNKNOWN or "layout.name" in keys or (name not in files and not any(map(_of_layout, keys))):
        return node
    shape = _shape(node.layout)
    is_of_file = name in files and shape == _shape(_file("layout", name))
    return node if is_of_file else merged(node, root, "layout", {"layout": {"name": shape}})


def _of_layout(key: str) -> bool:
    return key.startswith("layout.")


def _shape(layout: Any) -> str:
    """The engines of a layout's tree in words."""
    return cast(schema.Layout, OmegaConf.to_object(layout)).shape


def _parsed(root: Fields, keys: Sequence[str], values: Sequence[str]) -> list[tuple[str, Any]]:
    """The key of each word, and the word as a tree. Raises ConfigError for a key that cannot be set."""
    words = [(key, _parse(root, key, word)) for key, word in zip(keys, values, strict=True)]
    for key, said in words:
        _check_key(root, key, OmegaConf.select(said, key))
        constant_keys.check_key(key)
    return words


def _with_named_files(node: Any, root: Fields, words: Sequence[tuple[str, Any]], chosen: set[str]) -> Any:
    for key, (groups_of, *_) in named_files.NAMED_FILES.items():
        for said in [said for of, said in words if of == key]:
            node = merged(node, root, key, said)
        if chosen & groups_of and OmegaConf.select(node, key):
            node = merged(node, root, key, named_files.changes(node, key))
    return node


def _with_kernels(node: Any, root: Fields, words: Sequence[tuple[str, Any]], chosen: set[str]) -> Any:
    """The tree with the speed of the chosen kernels. Raises ConfigError for keys of other kernels."""
    keys = [key for key, _ in words]
    if node.engine.kind == "simulated" and (chosen & {"engine", "model"} or set(keys) & KERNEL_KEYS):
        for said in [said for of, said in words if of in KERNEL_KEYS]:
            node = merged(node, root, "engine", said)
        node = merged(node, root, "engine", {"engine": kernels.changes(node.engine, node.model)})
    constant_keys.check_kernels(node, keys)
    return node


def _refuse_overruled(node: Any, parsed: Sequence[Any]) -> None:
    """Raise ConfigError for a word that the conversations of the workload would overrule."""
    if node.workload.conversations is None:
        return
    for said in parsed:
        if why := overruled(cast(dict[str, Any], OmegaConf.to_container(said))):
            raise ConfigError(why)


def _refuse_constant(node: Any) -> None:
    """Raise ConfigError for an impossible constant, with its key, which the constant does not know."""
    for path in constant_keys.units(node):
        try:
            OmegaConf.to_object(OmegaConf.select(node, path))
        except ValueError as error:
            raise ConfigError(f"{path}: {one_line_of(error)}") from error


def _parse(root: Fields, key: str, word: str) -> Any:
    """The value of a word as a tree; a text stays as it was typed, so that a run named 007 is no number."""
    try:
        refuse_large(word.partition("=")[2])
        said = OmegaConf.from_dotlist([word])
        if is_text(root, key) and not isinstance(OmegaConf.select(said, key), str | Container | None):
            OmegaConf.update(said, key, word.partition("=")[2])
        _fix_lengths(root, key, said)
        return said
    except (yaml.YAMLError, ValueError) as error:
        # The error as a whole would show the value, which may hold a secret.
        reason = getattr(error, "problem", None) or "not a text YAML allows"
        raise ConfigError(
            f"{key}: the value is not YAML ({reason}); put text with brackets or colons in quotes"
        ) from error


def _fix_lengths(root: Fields, key: str, said: Any) -> None:
    """A number for a distribution of lengths is a fixed length, whatever the distribution was before."""
    value = OmegaConf.select(said, key)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if whole and type_of(root, key) is schema.Lengths:
        OmegaConf.update(said, key, {**FIXED, "mean": value})


def _check_key(root: Fields, key: str, value: Any) -> None:
    """Raise ConfigError when `key` (dotted) does not exist, naming the nearest that does."""
    if not (why := unknown(root, key, value)):
        return
    name = key.partition(".")[2].partition(".")[0]
    homes = [kind for kind, spec in ENGINES.items() if name in (fields_of(spec) or {})]
    if key.startswith("engine.") and homes:
        raise ConfigError(f"engine.{name} belongs to engine={' or '.join(homes)}; leave it out")
    raise ConfigError(why)
