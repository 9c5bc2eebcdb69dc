"""Turns YAML groups and `key=value` words into an `Experiment`; the only user of omegaconf.

Precedence: dataclass defaults < the chosen file of each group < the files that `model.config_json` and
`engine.constants` name < `key=value`. A bare group name chooses a file (`workload=smoke`), a dotted key
sets a value (`slo.ttft_p90_ms=1500`); the order of the words never matters.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from omegaconf import Container, DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from conf import checkpoint, constants, kernels
from conf.io.bounded_yaml import bounded_text, refuse_large
from conf.io.bounded_yaml import read as read_yaml
from conf.io.nearest import hint, nearest
from conf.io.one_line import one_line, reason
from conf.misfit import Fields, fields_of, is_text, misfit, unknown
from conf.misfit import keys as walked
from conf.specs import experiment as schema
from conf.specs import planning
from conf.specs.overruled import overruled

ROOT = Path(__file__).parent
ENGINES: dict[str, type[schema.Engine]] = {
    "simulated": schema.SimulatedEngine,
    "vllm": schema.VllmEngine,
    "vllm_cpu": schema.VllmEngine,
    "vllm_emulated": schema.EmulatedEngine,
    "external": schema.ExternalEngine,
}
MOST_NAME_BYTES = 200
"""Bytes of a run's name: a file system takes 255, and names of parts and unfinished files are longer."""
_Read = Callable[[Path], dict[str, Any]]
_Changes = Callable[[Any, dict[str, Any]], dict[str, Any]]
"""From the tree so far and that of a named file to what the file changes."""


class ConfigError(ValueError):
    """The words or files do not make an experiment; the message is one line with the remedy."""


def groups() -> dict[str, list[str]]:
    """Names of the choices of each group, sorted: the YAML files in its folder."""
    choices: dict[str, list[str]] = {}
    for file in sorted(ROOT.glob("[a-z]*/*.yaml")):
        choices.setdefault(file.parent.name, []).append(file.stem)
    return choices


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
        experiment = _build(tree, values, set(choices), base)
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
    root = fields_of(planning.Planning) or {}
    for word in words:
        key, _ = _key_and_value(word)
        parsed = _parse(root, key, word)
        if why := unknown(root, key, OmegaConf.select(parsed, key)):
            raise ConfigError(why)
        node = _merge(node, planning.Planning, key, parsed)
    _refuse_twice(words)
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
    _refuse_twice(words)
    for word in words:
        key, value = _key_and_value(word)
        if key in known:
            choices[key] = value
        else:
            values.append(word)
    return choices, values


def _refuse_twice(words: Sequence[str]) -> None:
    """Raise ConfigError for a key that is set twice, of which one word would be lost."""
    given: set[str] = set()
    for key in (_key_and_value(word)[0] for word in words):
        if key in given:
            raise ConfigError(f"{key} is given twice; leave one of them out")
        given.add(key)
    for key in given - set(groups()):
        if inner := next((other for other in sorted(given) if other.startswith(f"{key}.")), ""):
            raise ConfigError(f"{key} and {inner} set the same; leave one of them out")


def _key_and_value(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        choices = [f"{group}={word}" for group, names in groups().items() if word in names]
        raise ConfigError(f"'{word}' is not of the form key=value{hint(choices)}")
    if not value.strip():
        known = groups().get(key)
        such = f"choose from {', '.join(known)}" if known else f"{key}=null unsets what may be unset"
        raise ConfigError(f"{key} has no value; write {key}=VALUE; {such}")
    if "[" in key:
        raise ConfigError(f"{key}: set the whole list, {key.partition('[')[0]}=[...]")
    if "${" in value:
        raise ConfigError(f"{key}: interpolation (${{...}}) is not supported; write the value")
    return key, value


def _file(group: str, choice: str) -> Path:
    known = groups()[group]
    if choice not in known:
        near = hint(nearest(choice, known))
        raise ConfigError(f"unknown choice '{group}={choice}'{near}; available: {', '.join(known)}")
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
    except IsADirectoryError as error:
        inside = path / ("config.json" if parse is json.loads else "config.yaml")
        raise ConfigError(f"{path} is a folder; name a file, such as {inside}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
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


def _build(tree: dict[str, Any], values: list[str], chosen: set[str], base: Path | None) -> schema.Experiment:
    """`chosen` groups are from their files; the others were saved in `base`, with what a file said."""
    specs = fields_of(schema.Experiment) or {}
    if strange := next((why for name in tree if (why := unknown(specs, str(name)))), ""):
        raise ConfigError(f"{base}: {strange}" if base else strange)
    kind = (tree.get("engine") or {}).get("kind")
    if kind is None:
        raise ConfigError(f"{base or ROOT}: engine is missing; start from a whole config.yaml")
    if kind not in list(ENGINES):
        near = hint(nearest(str(kind), list(ENGINES)))
        raise ConfigError(f"unknown engine kind '{kind}'{near}; available: {', '.join(ENGINES)}")
    root = {**specs, "engine": ENGINES[kind]}
    keys = [word.partition("=")[0] for word in values]
    chosen |= {key.partition(".")[0] for key in keys if key in _NAMED_FILES}
    if chosen & {"engine", "hardware", "model"}:
        tree["engine"].pop("constants_covariance", None)
    node = OmegaConf.merge(
        OmegaConf.structured(schema.Experiment), {"engine": OmegaConf.structured(ENGINES[kind])}
    )
    for name, value in tree.items():
        try:
            node = _merge(node, root, str(name), {name: value})
        except ConfigError as error:
            raise ConfigError(f"{base}: {error}" if base else str(error)) from error
    if missing := OmegaConf.missing_keys(node) - set(keys):
        first = next(name for name, _ in walked(root) if name in missing)
        raise ConfigError(f"{base or ROOT}: {first} is missing; give it, or start from a whole config.yaml")
    parsed = [_parse(root, key, word) for word, key in zip(values, keys, strict=True)]
    for key, said in zip(keys, parsed, strict=True):
        _check_key(root, key, OmegaConf.select(said, key))
        _check_constant(key)
        if key.partition(".")[2].startswith("constants_covariance"):
            raise ConfigError(f"{key} belongs to a calibration; name its file: engine.constants=FILE")
    for key, (groups_of, read, changes) in _NAMED_FILES.items():
        for said in [said for said, of in zip(parsed, keys, strict=True) if of == key]:
            node = _merge(node, root, key, said)
        if chosen & groups_of and OmegaConf.select(node, key):
            node = _merge(node, root, key, _read_named(node, key, read, changes))
    if kind == "simulated" and (chosen & {"engine", "model"} or set(keys) & _KERNEL_KEYS):
        for said in [said for said, of in zip(parsed, keys, strict=True) if of in _KERNEL_KEYS]:
            node = _merge(node, root, "engine", said)
        node = _merge(node, root, "engine", {"engine": kernels.changes(node.engine, node.model)})
    own = next((key for key in keys if key.startswith(constants.KERNELS)), "")
    if own and not OmegaConf.select(node, constants.KERNELS):
        raise ConfigError(
            f"{own}: this engine has the kernels of the fit; choose others with engine=simulated_triton or "
            "engine.attention_backend=NAME"
        )
    for key in keys:
        node = _merge(node, root, key, _exact(node, key))
    for key, said in zip(keys, parsed, strict=True):
        node = _merge(node, root, key, said)
    _refuse_overruled(node, parsed)
    if node.engine.kind != kind:
        raise ConfigError("engine.kind cannot be set; choose a file with engine=NAME")
    try:
        experiment = cast(schema.Experiment, OmegaConf.to_object(node))
    except ValueError:
        _refuse_constant(node)
        raise
    constants.check_correlations(experiment)
    return experiment


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
    """The changes by a calibration; the model's own fit no longer speaks of its constants."""
    names = {group: node[group].name for group in ("model", "hardware")}
    units = {path: unit for path, unit in _units(node).items() if not path.startswith(constants.KERNELS)}
    changes = constants.overlay(tree, names, units)
    fit = node.model.posterior
    joint = cast(dict[str, list[float]], OmegaConf.to_container(fit.correlations))
    with read_write(fit):  # a merge would leave the rows that are to go
        fit.correlations = constants.outside(joint, tree["constants"])
    return changes


_NAMED_FILES: dict[str, tuple[set[str], _Read, _Changes]] = {
    "model.config_json": ({"model"}, _read_json, _checkpoint),
    "engine.constants": ({"engine", "hardware", "model"}, _read, _calibration),
}
"""Keys that name a file of further values, with the groups whose choice makes it read anew."""
_CONSTANTS = ("model.step_time", "hardware.efficiency", constants.KERNELS)
_KERNEL_KEYS = {"engine.kernels", "engine.attention_backend", "model.fitted_with", "model.kv_lora_rank"}
"""Keys that decide which kernels an engine has, and those of the fit."""


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
        for name, entry in (OmegaConf.select(node, group) or {}).items()
    }


def _parse(root: Fields, key: str, word: str) -> Any:
    """The value of a word as a tree. What is a text stays as it was typed: a run named 007 is no number."""
    try:
        refuse_large(word.partition("=")[2])
        said = OmegaConf.from_dotlist([word])
        if is_text(root, key) and not isinstance(OmegaConf.select(said, key), str | Container | None):
            OmegaConf.update(said, key, word.partition("=")[2])
        return said
    except (yaml.YAMLError, ValueError) as error:
        # The error as a whole would show the value, which may hold a secret.
        reason = getattr(error, "problem", None) or "not a text YAML allows"
        raise ConfigError(
            f"{key}: the value is not YAML ({reason}); put text with brackets or colons in quotes"
        ) from error


def _merge(node: Any, kind: Any, key: str, values: Any) -> Any:
    """`node`, of the type `kind`, with `values`. An error names `key` or one inside it."""
    try:
        return OmegaConf.unsafe_merge(node, values)  # `node` is given up: to copy it costs most of a start-up
    except (OmegaConfBaseException, ValueError, TypeError) as error:
        tree = OmegaConf.to_container(values) if isinstance(values, DictConfig) else values
        raise ConfigError(misfit(kind, tree, "") or f"{key}: {_one_line(error)}") from error


def _check_key(root: Fields, key: str, value: Any) -> None:
    """Raise ConfigError when `key` (dotted) does not exist, naming the nearest that does."""
    if not (why := unknown(root, key, value)):
        return
    name = key.partition(".")[2].partition(".")[0]
    homes = [kind for kind, spec in ENGINES.items() if name in (fields_of(spec) or {})]
    if key.startswith("engine.") and homes:
        raise ConfigError(f"engine.{name} belongs to engine={' or '.join(homes)}; leave it out")
    raise ConfigError(why)


def _check_constant(key: str) -> None:
    """Raise ConfigError when `key` would replace a constant or relabel it."""
    parts = key.split(".")
    if ".".join(parts[:2]) in _CONSTANTS and (len(parts) < 4 or parts[3] == "unit"):
        raise ConfigError(
            f"{key} cannot be set: of a constant only value, low, high and source can, each in its unit, as "
            "in model.step_time.layer_us.value=100"
        )


def _one_line(error: Exception) -> str:
    """omegaconf puts the key on a line of its own; the user gets both in one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    return f"{key}: {lines[0]}" if key and key not in lines[0] else lines[0]
