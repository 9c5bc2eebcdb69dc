"""Turns YAML groups, files that a user names and `key=value` words into an `Experiment`.

Precedence: dataclass defaults < the chosen file of each group < the files that `model.config_json` and
`engine.constants` name < `key=value`. A bare group name chooses a file (`workload=smoke`), a dotted key
sets a value (`slo.ttft_p90_ms=1500`); the order of the words never matters. Trees stay plain until all are
merged; then `conf.typed` makes the specs of them, or names everything that is wrong.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml

from conf import checkpoint, constants, kernels
from conf.io.bounded_yaml import DUMPER, bounded_text
from conf.io.bounded_yaml import read as read_yaml
from conf.io.check import ConfigError, Refusals
from conf.io.one_line import one_line, reason
from conf.keys import fields_of, overlaid, unflattened, value_at, with_defaults
from conf.specs.bounds import long_key
from conf.specs.engine import ENGINES, SimulatedEngine
from conf.specs.experiment import Experiment
from conf.specs.layout import Layout
from conf.specs.planning import Planning, Recommendation
from conf.typed import typed
from conf.word_values import LIST, parsed
from conf.words import ROOT, group_file, groups, split_words

KERNEL_KEYS = {
    *("engine.version", "engine.kernels", "engine.attention_backend", "model.fitted_with"),
    "model.kv_lora_rank",
}
"""Keys that decide which release and kernels an engine has, and those of the fit."""
NAMED_FILES = {"model.config_json": {"model"}, "engine.constants": {"engine", "hardware", "model"}}
"""Keys that name a file of further values, and the groups whose choice reads it anew."""
Groups = TypeVar("Groups", Planning, Recommendation)
Tree = dict[str, Any]
UNKNOWN = "unknown"
NAMED_GROUPS = ("model", "hardware", "layout", "routing")
"""Groups of which the defaults say nothing about external endpoints."""
UNCOMPARED = ("name", "served_name", "step_time", "posterior")
"""Keys that do not say whether a group is that of a file."""
OWN_LENGTHS = {
    "input_tokens": "max_prompt_tokens or the tokens of a part",
    "output_tokens": "answer_tokens.mean",
}
"""Keys of a workload that its conversations overrule, and theirs."""
BY_TURNS = {"kind": "conversation"}
MOST_NAME_BYTES = 200
"""Most bytes of a run's name: file systems take 255, and names of parts and unfinished files are longer."""


def load(words: Sequence[str] = (), base: Path | None = None) -> Experiment:
    """The experiment of `words` (`key=value` each) over the defaults or over a saved tree `base`.

    Raises ConfigError with a line for everything that is wrong: keys, choices and values, or specs that do
    not fit.
    """
    refusals = Refusals()
    choices, texts = split_words(words, refusals)
    saved = read_saved(base, LIST in texts) if base else {}
    tree = _of_saved(saved, choices, texts) if base else _of_defaults()
    for group, name in choices.items():
        with refusals.collected():
            tree = tree | {group: group_tree(group, name)}
    root = {**(fields_of(Experiment) or {}), "engine": _engine_spec(tree.get("engine"))}
    values = parsed(root, texts, refusals)
    with refusals.collected():
        tree = _with_words(tree, values, choices, bool(base))
    if any(key.startswith("layout.") for key in values):
        tree = _with_layout_name(tree, values)
    experiment = typed(Experiment, tree, root, refusals, values, str(base or ""))
    with refusals.collected():
        constants.check_correlations(experiment)
    with refusals.collected():
        refuse_name(experiment.run if "run" in values else None)
    with refusals.collected():
        _refuse_dropped(saved, experiment, choices, base)
    refusals.raise_if_any()
    return experiment


def refuse_name(run: str | None) -> None:
    """Raise ConfigError for a `run` that cannot name a folder within `out`; None names none."""
    if run is None:
        return
    is_plain = run.isprintable() and run == run.strip() and run not in ("", ".", "..")
    is_short = len(run.encode(errors="replace")) <= MOST_NAME_BYTES
    if not is_plain or not is_short or run.startswith("-") or set(run) & set("/\\="):
        raise ConfigError(
            f"run={one_line(run, 20)} is no name of a folder in out; give a plain one of at most "
            f"{MOST_NAME_BYTES} bytes, without / \\ and ="
        )


def load_groups(spec: type[Groups], words: Sequence[str]) -> Groups:
    """The groups of a plan or a recommendation, from their words over the defaults.

    Raises ConfigError as `load` does.
    """
    refusals = Refusals()
    choices, texts = split_words(words, refusals)
    root = fields_of(spec) or {}
    values = parsed(root, choices | texts, refusals)
    tree = overlaid({group: {} for group in root}, unflattened(values))
    return typed(spec, tree, root, refusals, values)


def dump(experiment: Experiment) -> str:
    """The experiment as YAML, which `load(base=...)` reads back as an equal one."""
    return yaml.dump(asdict(experiment), Dumper=DUMPER, sort_keys=False, allow_unicode=True)


@lru_cache
def group_tree(group: str, name: str) -> Tree:
    """The tree of a file of ours with all defaults. It is shared: nobody changes it."""
    return cast(Tree, _filled(group, read(group_file(group, name))))


@lru_cache
def _defaults() -> Tree:
    """Names of the default file of each group, and values of other keys. It is shared: nobody changes it."""
    return read(ROOT / "config.yaml")


def _filled(group: str, tree: Any) -> Any:
    """The tree of a group with all defaults."""
    spec = _engine_spec(tree) if group == "engine" else (fields_of(Experiment) or {}).get(group)
    return with_defaults(spec, tree)


def _engine_spec(engine: Any) -> type:
    """The spec of an engine's tree; of a wrong kind, which `typed` refuses, that of the simulated engine."""
    kind = engine.get("kind") if isinstance(engine, Mapping) else None
    return ENGINES.get(str(kind), SimulatedEngine)


def _of_defaults() -> Tree:
    tree = {key: value for key, value in _defaults().items() if key != "defaults"}
    files = {group: group_tree(group, name) for group, name in _defaults()["defaults"].items()}
    return cast(Tree, with_defaults(Experiment, tree)) | files


def _of_saved(saved: Tree, choices: Mapping[str, str], keys: Iterable[str]) -> Tree:
    """The tree of a saved experiment, without what belongs to groups that are chosen or read anew."""
    tree = _renamed(saved) if choices.get("engine", "external") != "external" else saved
    filled = {group: _filled(group, value) for group, value in tree.items()}
    tree = cast(Tree, with_defaults(Experiment, filled))
    renewed = {*choices, *(key.partition(".")[0] for key in keys if key in NAMED_FILES)}
    if renewed & {"engine", "hardware", "model"} and value_at(tree, "engine.constants_covariance"):
        tree["engine"] = tree["engine"] | {"constants_covariance": {}}
    return tree


def _renamed(tree: Tree) -> Tree:
    """The tree of external endpoints for an engine of ours: unnamed groups of a file have its name."""
    renamed: Tree = {}
    for group in NAMED_GROUPS:
        file = group_tree(group, _defaults()["defaults"][group])
        own = tree.get(group) or {}
        facts = {key: value for key, value in file.items() if key not in UNCOMPARED}
        is_unnamed = own.get("name") in (UNKNOWN, own.get("served_name", UNKNOWN))
        if is_unnamed and facts.items() <= own.items():
            renamed[group] = {**own, "name": file["name"]}
    return tree | renamed


def _with_words(tree: Tree, values: Mapping[str, Any], choices: Mapping[str, str], is_saved: bool) -> Tree:
    """The tree with the values of words, and with what follows: named files, kernels and exact constants.

    Over a saved tree, groups without a choice keep its values.
    """
    words, kind = unflattened(values), value_at(tree, "engine.kind")
    _refuse_overruled(tree, words)
    if value_at(words, "engine.kind") not in (None, kind):
        raise ConfigError("engine.kind cannot be set; choose a file with engine=NAME")
    if kind == "external" and not is_saved:
        # The defaults were not measured: groups that no word chose have no names, or the model's.
        unnamed = {group: {"name": UNKNOWN} for group in NAMED_GROUPS if group not in choices}
        if (served := value_at(words, "model.served_name")) and "model" in unnamed:
            unnamed["model"] = {"name": served}
        tree = overlaid(tree, unnamed)
    renewed = set(choices) if is_saved else set(groups())
    renewed |= {key.partition(".")[0] for key in values if key in NAMED_FILES}
    tree = _with_keys(tree, values, NAMED_FILES)
    for key, read_anew_by in NAMED_FILES.items():
        group, name = key.split(".")
        has_key = group != "engine" or hasattr(_engine_spec(tree.get("engine")), name)
        if has_key and renewed & read_anew_by and value_at(tree, key):
            tree = _with_named_file(tree, key)
    if kind == "simulated" and (renewed & {"engine", "model"} or values.keys() & KERNEL_KEYS):
        tree = _with_keys(tree, values, KERNEL_KEYS)
        try:
            ratio = kernels.ratio(tree["engine"], tree.get("model", {}))
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise ConfigError(f"model.posterior: {reason(error)}") from error
        tree = overlaid(tree, {"engine": {"kernel_ratio": ratio and asdict(ratio)}})
    constants.check_kernels(tree, values)
    for key in values:
        tree = overlaid(tree, constants.exact(tree, key))
    return overlaid(tree, words)


def _with_keys(tree: Tree, values: Mapping[str, Any], keys: Container[str]) -> Tree:
    """The tree with the values of some keys alone."""
    return overlaid(tree, unflattened({key: value for key, value in values.items() if key in keys}))


def _refuse_overruled(tree: Tree, words: Tree) -> None:
    """Raise ConfigError for words with lengths, which conversations have themselves."""
    if value_at(overlaid(tree, words), "workload.conversations") is None:
        return
    for name, instead in OWN_LENGTHS.items():
        if value_at(words, f"workload.{name}") not in (None, BY_TURNS):
            raise ConfigError(
                f"workload.{name}: conversations give the requests their lengths; leave it out, or set "
                f"workload.conversations.{instead}"
            )


def _refuse_dropped(
    saved: Tree, experiment: Experiment, choices: Mapping[str, str], base: Path | None
) -> None:
    """Raise ConfigError where a calibration's file is dropped but its values stay."""
    calibration = value_at(saved, "engine.constants")
    dropped = calibration and getattr(experiment.engine, "constants", None) == ""
    if dropped and not {"model", "hardware"} <= set(choices):
        raise ConfigError(
            f"engine.constants={calibration} is dropped but {base} holds its values: also choose model=NAME "
            "hardware=NAME"
        )


def _with_layout_name(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """The tree, its changed layout named by the engines where these are not those of the named file.

    A layout of external endpoints that has no name gets none.
    """
    name, files = value_at(tree, "layout.name"), groups()["layout"]
    is_external = value_at(tree, "engine.kind") == "external"
    if "layout.name" in values or (name == UNKNOWN and is_external):
        return tree
    try:
        shape = _shape(tree["layout"])
    except (ConfigError, LookupError):
        return tree  # whose layout is about to be refused
    is_of_file = name in files and shape == _shape(group_tree("layout", name))
    return tree if is_of_file else overlaid(tree, {"layout": {"name": shape}})


def _shape(layout: Tree) -> str:
    """The engines of a layout's tree in words."""
    return typed(Layout, layout, fields_of(Layout) or {}, Refusals()).shape


def read(path: Path) -> Tree:
    """The mapping in a YAML file. Raises ConfigError."""
    tree = _mapping(path, read_yaml)
    if "${" in str(tree):
        raise ConfigError(f"{path}: interpolation (${{...}}) is not supported")
    return tree


def _mapping(path: Path, parse: Callable[[str], Any]) -> Tree:
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


def read_saved(path: Path, without_bounds: bool = False) -> Tree:
    """The tree of a saved experiment, whose groups are mappings. Raises ConfigError.

    `without_bounds` leaves out the bounds that a list of bounds is to replace.
    """
    tree = read(path)
    wrong = [group for group in [*groups(), "target"] if not isinstance(tree.get(group, {}), dict)]
    if wrong:
        raise ConfigError(*(f"{path}: {group} is not a mapping of keys to values" for group in wrong))
    if "slo" not in tree:
        return tree
    slo = {key: ms for key, ms in tree["slo"].items() if long_key(f"slo.{key}") == f"slo.{key}"}
    short = {key.rpartition("_")[0]: ms for key, ms in tree["slo"].items() if key not in slo}
    if without_bounds:
        slo["at_most_ms"] = {}
    elif short and isinstance(slo.setdefault("at_most_ms", {}), dict):
        slo["at_most_ms"] = slo["at_most_ms"] | short
    return tree | {"slo": slo}


def _with_named_file(tree: Tree, key: str) -> Tree:
    """The tree with the values of the file that `key` (one of NAMED_FILES) names. Raises ConfigError."""
    path = Path(str(value_at(tree, key)))
    is_checkpoint = key == "model.config_json"
    values = _mapping(path, json.loads) if is_checkpoint else read(path)
    try:
        return (_with_checkpoint if is_checkpoint else _with_calibration)(tree, values)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ConfigError(f"{key}={path}: {reason(error)}") from error


def _with_checkpoint(tree: Tree, config: Tree) -> Tree:
    """The facts of a config.json; the constants of the chosen model stay, as those of a relative."""
    model, facts = tree["model"], checkpoint.facts(config)
    if bool(facts["experts"]) != bool(model["experts"]):
        kind = "a mixture of experts" if facts["experts"] else "dense"
        raise ValueError(
            f"is {kind}, unlike {model['name']}, whose constants it would have; choose another with "
            "model=NAME"
        )
    path = Path(model["config_json"])
    name = path.absolute().parent.name if path.name == "config.json" else path.stem.removesuffix("_config")
    peak = "FP8" if facts["weights"] == "fp8" else "BF16"
    step_time = {
        field: {"source": f"of {model['name']}: {constant['source']}"}
        for field, constant in model["step_time"].items()
    }
    for field in ("gemm_decode", "gemm_prefill"):
        step_time[field]["unit"] = f"share of {peak} peak"
    source = f"config.json of {name}"
    return overlaid(
        tree,
        {"model": {**facts, "name": name, "served_name": name, "source": source, "step_time": step_time}},
    )


def _with_calibration(tree: Tree, calibration: Tree) -> Tree:
    """The values of a calibration; the model's own fit no longer correlates its constants."""
    names = {group: tree[group]["name"] for group in ("model", "hardware")}
    units = {
        path: unit for path, unit in constants.units(tree).items() if not path.startswith(constants.KERNELS)
    }
    changed = overlaid(tree, constants.overlay(calibration, names, units))
    joint = constants.outside(value_at(tree, "model.posterior.correlations"), calibration["constants"])
    posterior = changed["model"]["posterior"] | {"correlations": joint}
    covariance = {"constants_covariance": calibration.get("covariance") or {}}
    return changed | {
        "model": changed["model"] | {"posterior": posterior},
        "engine": changed["engine"] | covariance,
    }
