"""Turns YAML groups and `key=value` words into an `Experiment`; the only user of omegaconf.

Precedence: dataclass defaults < the chosen file of each group < the files that `model.config_json` and
`engine.constants` name < `key=value`. A bare group name chooses a file (`workload=smoke`), a dotted key
sets a value (`slo.ttft_p90_ms=1500`); the order of the words never matters.
"""

import dataclasses
import difflib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import Container, DictConfig, OmegaConf, StringNode
from omegaconf.errors import OmegaConfBaseException

from conf import checkpoint, constants, planning, schema
from conf.bounded_yaml import bounded_text, refuse_large
from conf.bounded_yaml import read as read_yaml
from conf.one_line import one_line, reason
from conf.overruled import overruled

ROOT = Path(__file__).parent
ENGINES: dict[str, type[schema.Engine]] = {
    "simulated": schema.SimulatedEngine,
    "vllm": schema.VllmEngine,
    "vllm_cpu": schema.VllmEngine,
    "vllm_emulated": schema.EmulatedEngine,
    "external": schema.ExternalEngine,
}
_PLANNED = [
    f"{group}.{field.name}"
    for group, spec in (("demand", planning.Demand), ("plan", planning.Care))
    for field in dataclasses.fields(spec)
]
MOST_NAME_BYTES = 200
"""Bytes of a run's name: a file system takes 255, and names of parts and unfinished files are longer."""
_Read = Callable[[Path], dict[str, Any]]
_Changes = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""From the tree so far and that of a named file to what the file changes."""


class ConfigError(ValueError):
    """The words or files do not make an experiment; the message is one line with the remedy."""


def groups() -> dict[str, list[str]]:
    """Group name -> the names of its choices, sorted."""
    folders = sorted(path for path in ROOT.iterdir() if path.is_dir() and path.name[0].isalpha())
    return {folder.name: sorted(file.stem for file in folder.glob("*.yaml")) for folder in folders}


def load(words: Sequence[str] = (), base: Path | None = None) -> schema.Experiment:
    """The experiment of `words` (`key=value` each) over the defaults or over a saved tree `base`.

    Raises ConfigError with one line: an unknown key, choice or value, or specs that do not fit.
    """
    choices, values = _split(words)
    tree = _read_saved(base) if base else {}
    calibration = tree.get("engine", {}).get("constants")
    if not base:
        defaults = _read(ROOT / "config.yaml")
        choices = {**defaults.pop("defaults"), **choices}
        tree.update(defaults)
    for group, choice in choices.items():
        tree[group] = _read(_file(group, choice))
    try:
        experiment = _build(tree, values, set(choices))
    except ConfigError:
        raise
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(_one_line(error)) from error
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
    """Raise ConfigError for a `run` that names no folder of its own within `out`; None is no name."""
    if run is None:
        return
    if run in ("", ".", "..") or set(run) & set("/\\="):
        raise ConfigError(f"run={one_line(run)} is no name of a folder in out; give one without / \\ and =")
    if not run.isprintable() or run != run.strip() or run.startswith("-"):
        raise ConfigError("run=... has control characters or begins or ends oddly; give a plain name")
    if len(run.encode(errors="replace")) > MOST_NAME_BYTES:
        raise ConfigError(f"run={run[:20]}... is longer than {MOST_NAME_BYTES} bytes; give a shorter name")


def load_planning(words: Sequence[str]) -> planning.Planning:
    """What a plan is asked, by words demand.* and plan.* over the defaults.

    Raises ConfigError with one line: an unknown key, a value of the wrong kind, or rates that cannot be.
    """
    groups_of_it: dict[str, Any] = {field.name: {} for field in dataclasses.fields(planning.Planning)}
    node = OmegaConf.merge(OmegaConf.structured(planning.Planning), groups_of_it)
    for word in words:
        key, _ = _key_and_value(word)
        if key not in _PLANNED:
            raise ConfigError(f"unknown key '{key}'{_hint(key, _PLANNED)}")
        node = _merge(node, key, _parse(node, key, word))
    try:
        return cast(planning.Planning, OmegaConf.to_object(node))
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        raise ConfigError(_one_line(error)) from error


def dump(experiment: schema.Experiment) -> str:
    """The resolved tree as YAML, which `load(base=...)` reads back to an equal experiment."""
    return OmegaConf.to_yaml(OmegaConf.structured(experiment))


def _split(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Words that choose a file of a group, and words that set a value."""
    known = groups()
    choices: dict[str, str] = {}
    values: list[str] = []
    for word in words:
        key, value = _key_and_value(word)
        if key in known:
            choices[key] = value
        else:
            values.append(word)
    return choices, values


def _key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise ConfigError(f"'{word}' is not of the form key=value")
    if "[" in key:
        raise ConfigError(f"{key}: set the whole list, {key.partition('[')[0]}=[...]")
    if "${" in value:
        raise ConfigError(f"{key}: interpolation (${{...}}) is not supported; write the value")
    return key, value


def _file(group: str, choice: str) -> Path:
    known = groups()[group]
    if choice not in known:
        raise ConfigError(
            f"unknown choice '{group}={choice}'{_hint(choice, known)}; available: {', '.join(known)}"
        )
    return ROOT / group / f"{choice}.yaml"


def _read(path: Path) -> dict[str, Any]:
    tree = _mapping(path, read_yaml)
    if "${" in str(tree):
        raise ConfigError(f"{path}: interpolation (${{...}}) is not supported")
    return tree


def _read_json(path: Path) -> dict[str, Any]:
    return _mapping(path, json.loads)


def _mapping(path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    try:
        tree = parse(bounded_text(path))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} is not a mapping of keys to values")
    return tree


def _read_saved(path: Path) -> dict[str, Any]:
    """A tree whose groups are mappings, as `dump` writes it."""
    tree = _read(path)
    for key in ("run", "out"):
        if not isinstance(tree.get(key), str | None):
            raise ConfigError(f"{path}: {key} is no text; put it in quotes")
    for group in [*groups(), "target"]:
        if not isinstance(tree.get(group, {}), dict):
            raise ConfigError(f"{path}: {group} is not a mapping of keys to values")
    return tree


def _build(tree: dict[str, Any], values: list[str], chosen: set[str]) -> schema.Experiment:
    """`chosen` groups are from their files; the others were saved, with what a named file said of them."""
    kind = (tree.get("engine") or {}).get("kind")
    if kind not in list(ENGINES):
        raise ConfigError(f"unknown engine kind '{kind}'; available: {', '.join(ENGINES)}")
    keys = [word.partition("=")[0] for word in values]
    chosen |= {key.partition(".")[0] for key in keys if key in _NAMED_FILES}
    if chosen & {"engine", "hardware", "model"}:
        tree["engine"].pop("constants_covariance", None)
    node = OmegaConf.merge(
        OmegaConf.structured(schema.Experiment), {"engine": OmegaConf.structured(ENGINES[kind])}
    )
    for name, value in tree.items():
        node = _merge(node, str(name), {name: value})
    for key in keys:
        _check_key(node, key)
        _check_constant(key)
        if key.partition(".")[2].startswith("constants_covariance"):
            raise ConfigError(f"{key} belongs to a calibration; name its file: engine.constants=FILE")
    for key, (groups_of, read, changes) in _NAMED_FILES.items():
        for word in [word for word, of in zip(values, keys, strict=True) if of == key][-1:]:
            node = _merge(node, key, _parse(node, key, word))
        if chosen & groups_of and OmegaConf.select(node, key):
            node = _merge(node, key, _read_named(node, key, read, changes))
    for key in keys:
        node = _merge(node, key, _exact(node, key))
    parsed = [_parse(node, key, word) for word, key in zip(values, keys, strict=True)]
    for key, said in zip(keys, parsed, strict=True):
        node = _merge(node, key, said)
    _refuse_overruled(node, parsed)
    if node.engine.kind != kind:
        raise ConfigError("engine.kind cannot be set; choose a file with engine=NAME")
    try:
        return cast(schema.Experiment, OmegaConf.to_object(node))
    except ValueError:
        _refuse_constant(node)
        raise


def _refuse_overruled(node: Any, parsed: Sequence[Any]) -> None:
    """Raise ConfigError for a word that the conversations of the workload would overrule."""
    if node.workload.conversations is None:
        return
    for said in parsed:
        if why := overruled(cast(dict[str, Any], OmegaConf.to_container(said))):
            raise ConfigError(why)


def _refuse_constant(node: Any) -> None:
    """Raise ConfigError for a constant that cannot be; by itself it does not know its key."""
    for path in _units(node):
        try:
            OmegaConf.to_object(OmegaConf.select(node, path))
        except ValueError as error:
            raise ConfigError(f"{path}: {_one_line(error)}") from error


def _read_named(node: Any, key: str, read: _Read, changes: _Changes) -> dict[str, Any]:
    """What the file that `key` names changes in `node`."""
    path = OmegaConf.select(node, key)
    tree = read(Path(path))
    try:
        return changes(node, tree)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"{key}={path}: {reason(error)}") from error


def _checkpoint(node: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """The facts of a config.json, with the constants of the chosen model as those of a relative."""
    model, facts = node.model, checkpoint.facts(tree)
    if bool(facts["experts"]) != bool(model.experts):
        kind = "a mixture of experts" if facts["experts"] else "dense"
        raise ValueError(
            f"is {kind}, unlike {model.name}, whose constants it would have; choose another with model=NAME"
        )
    path = Path(model.config_json)
    name = path.absolute().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    peak = "FP8" if facts["weights"] == "fp8" else "BF16"
    step_time = {field: {"source": f"of {model.name}: {of.source}"} for field, of in model.step_time.items()}
    for field in ("gemm_decode", "gemm_prefill"):
        step_time[field]["unit"] = f"share of {peak} peak"
    source = f"config.json of {name}"
    return {"model": {**facts, "name": name, "served_name": name, "source": source, "step_time": step_time}}


def _calibration(node: Any, tree: dict[str, Any]) -> dict[str, Any]:
    names = {group: node[group].name for group in ("model", "hardware")}
    return constants.overlay(tree, names, _units(node))


_NAMED_FILES: dict[str, tuple[set[str], _Read, _Changes]] = {
    "model.config_json": ({"model"}, _read_json, _checkpoint),
    "engine.constants": ({"engine", "hardware", "model"}, _read, _calibration),
}
"""Keys that name a file of further values, with the groups whose choice makes it read anew."""
_CONSTANTS = ("model.step_time", "hardware.efficiency")


def _exact(node: Any, key: str) -> dict[str, Any]:
    """A constant whose value is given as a word is taken as given: the old evidence is not of it."""
    path, _, field = key.rpartition(".")
    if field != "value" or path not in _units(node):
        return {}
    outer, inner, name = path.split(".")
    return {outer: {inner: {name: {"low": None, "high": None, "source": f"given as {key}"}}}}


def _units(node: Any) -> dict[str, str]:
    """The units of the constants of the step time by config key."""
    return {
        f"{group}.{name}": entry.unit
        for group in _CONSTANTS
        for name, entry in OmegaConf.select(node, group).items()
    }


def _parse(node: Any, key: str, word: str) -> Any:
    """The value of a word as a tree. What is a text stays as it was typed: a run named 007 is no number."""
    try:
        refuse_large(word.partition("=")[2])
        said = OmegaConf.from_dotlist([word])
        if _is_text(node, key) and not isinstance(OmegaConf.select(said, key), str | Container | None):
            OmegaConf.update(said, key, word.partition("=")[2])
        return said
    except (yaml.YAMLError, ValueError) as error:
        # The error as a whole would show the value, which may hold a secret.
        reason = getattr(error, "problem", None) or "not a text YAML allows"
        raise ConfigError(
            f"{key}: the value is not YAML ({reason}); put text with brackets or colons in quotes"
        ) from error


def _is_text(node: Any, key: str) -> bool:
    """True of a key whose value is one text."""
    above, _, name = key.rpartition(".")
    at = OmegaConf.select(node, above) if above else node
    return isinstance(at, DictConfig) and isinstance(at._get_node(name), StringNode)


def _merge(node: Any, key: str, values: Any) -> Any:
    """`node` with `values`. An error names `key`, and the value only within a sentence of omegaconf."""
    try:
        return OmegaConf.unsafe_merge(node, values)  # `node` is given up: to copy it costs most of a start-up
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        line = _one_line(error).partition(". value: ")[0]
        raise ConfigError(line if key in line else f"{key}: {line}") from error


def _check_key(node: Any, key: str) -> None:
    """Raise ConfigError when `key` (dotted) does not exist, naming the nearest that does."""
    at: Any = node
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(at, DictConfig) or not dataclasses.is_dataclass(OmegaConf.get_type(at)):
            return
        if part not in list(at.keys()):
            if parts[0] == "engine" and part in schema.SimulatedEngine.__dataclass_fields__:
                raise ConfigError(f"{key} belongs to engine=simulated; leave it out")
            near = [".".join([*parts[:depth], str(name)]) for name in at]
            raise ConfigError(f"unknown key '{key}'{_hint('.'.join(parts[: depth + 1]), near)}")
        at = at._get_node(part)


def _check_constant(key: str) -> None:
    """Raise ConfigError when `key` would replace a constant or relabel it."""
    parts = key.split(".")
    if ".".join(parts[:2]) in _CONSTANTS and (len(parts) < 4 or parts[3] == "unit"):
        raise ConfigError(
            f"{key} cannot be set: of a constant only value, low, high and source can, each in its unit, as "
            "in model.step_time.layer_us.value=100"
        )


def _hint(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


def _one_line(error: Exception) -> str:
    """omegaconf puts the key on a line of its own; the user gets both in one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    return f"{key}: {lines[0]}" if key and key not in lines[0] else lines[0]
