"""Open a result of another tool; its content says which tool, never its name."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from analysis.exchange import aiperf, guidellm, vllm_bench
from analysis.exchange.foreign import Foreign
from analysis.results.runs import RunError
from conf.io.one_line import reason

TOOLS = f"{vllm_bench.TOOL}, {guidellm.TOOL} or {aiperf.TOOL}"


def is_foreign(path: Path | str) -> bool:
    """True for a file, because runs and studies are folders; the content is checked when it is read."""
    return Path(path).is_file()


def load_foreign(path: Path | str) -> list[Foreign]:
    """The loads in a result file, mostly one. Raises RunError for any other file, or one that is cut off."""
    path = Path(path)
    text = _text(path)
    try:
        trees, cut = _trees(text, path)
        found = _read(trees, path)
    except RunError:
        raise
    except RecursionError as error:
        raise RunError(f"{path} is nested too deeply: it is no result of {TOOLS}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, OSError) as error:
        raise RunError(
            f"{path} looks like a result of {TOOLS}, but not of a version that is read here: "
            f"{type(error).__name__} {error}"
        ) from error
    note = ("its last line is cut off and left out",) if cut else ()
    return [replace(one, notes=(*one.notes, *note)) for one in found]


def _read(trees: Sequence[Any], path: Path) -> list[Foreign]:
    if aiperf.fits(trees):
        return [aiperf.read(trees, path)]
    if len(trees) == 1 and guidellm.fits(trees[0]):
        return list(guidellm.read(trees[0], path))
    if trees and all(map(vllm_bench.fits, trees)):
        several = len(trees) > 1
        return [
            vllm_bench.read(tree, path, f"line {i + 1}" if several else "") for i, tree in enumerate(trees)
        ]
    raise RunError(f"{path} is not a result of {TOOLS}: {_looks(trees)}")


def _looks(trees: Sequence[Any]) -> str:
    first = trees[0]
    if isinstance(first, dict) and "aiperf_version" in first:
        return f"it is {aiperf.TOOL}'s summary; give profile_export.jsonl, which has the single requests"
    if isinstance(first, dict):
        return f"it holds {', '.join(list(map(str, first))[:4]) or 'nothing'}"
    return f"it holds a {type(first).__name__}"


def _text(path: Path) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be read as text: {reason(error)}") from error
    if not text.strip():
        raise RunError(f"{path} is empty: the tool saved nothing")
    return text


def _trees(text: str, path: Path) -> tuple[list[Any], bool]:
    """The JSON values in a text, one or one per line, and True if a cut-off last line was left out."""
    try:
        return [json.loads(text)], False
    except ValueError:
        return _lines(text.strip().split("\n"), path)  # JSON may hold what splitlines takes for an end


def _lines(lines: Sequence[str], path: Path) -> tuple[list[Any], bool]:
    trees: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            trees += [json.loads(line)] if line.strip() else []
        except ValueError as error:
            if number == len(lines) and trees:
                return trees, True
            raise RunError(
                f"{path} is cut off or not JSON, so no result of {TOOLS}: line {number}, {error}"
            ) from error
    return trees, False
