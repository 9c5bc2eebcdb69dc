"""Names in sentences: a workload that differs from its file is marked, an unnamed group is unknown."""

from dataclasses import asdict
from typing import Any

from conf.compose import UNKNOWN, preset
from conf.keys import flat
from conf.specs.workload import Workload

LENGTHS = ("input_tokens", "output_tokens")
SAID_ELSEWHERE = ("arrivals", "trace", "tokenizer", "images.tokens")
"""Beginnings of keys that other words say, or that follow from the model."""
READ_LATER = ("empirical", "conversation")
"""Kinds of lengths whose mean is read from a file or computed."""


def workload_name(workload: Workload) -> str:
    """The name of the workload's file, marked as changed where a value is not the file's."""
    return f"{workload.name} changed" if _changes(workload) else workload.name


def workload_tokens(workload: Workload) -> str:
    """Mean tokens of a prompt and of an answer, and each other key whose value is not that of the file."""
    means = workload.prompt_tokens, workload.output_tokens.mean
    tokens = "/".join(f"{mean:.0f}" if mean else UNKNOWN for mean in means)
    is_fixed = workload.input_tokens.kind == workload.output_tokens.kind == "fixed"
    others = [f"{key}={value}" for key, value in _changes(workload).items() if not key.startswith(LENGTHS)]
    return ", ".join([f"{tokens} tokens{'' if is_fixed else ' in the mean'}", *others])


def named(kind: str, name: str) -> str:
    """A name in a sentence; `unknown KIND` where no word and no file names one."""
    return f"unknown {kind}" if name == UNKNOWN else name


def _changes(workload: Workload) -> dict[str, Any]:
    """Keys -> values that are not those of the file with the workload's name; none without such a file."""
    file = flat(preset("workload", workload.name))
    here = {key: value for key, value in flat(asdict(workload)).items() if not _is_left_out(workload, key)}
    return {key: value for key, value in here.items() if file and file.get(key) != value}


def _is_left_out(workload: Workload, key: str) -> bool:
    if key.startswith(LENGTHS) and key.endswith(".mean"):
        return getattr(workload, key.partition(".")[0]).kind in READ_LATER
    return key.startswith(SAID_ELSEWHERE)
