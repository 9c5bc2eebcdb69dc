"""Verdicts as tests read them: as the tree that goes to JSON, and the screen of such a tree."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.results.json_border import from_tree, to_tree
from analysis.results.predictions import GridCell, GridVerdict, PredictionVerdict
from analysis.results.verdicts import RunVerdict, StudyVerdict, Verdict
from analysis.views import answers, prediction
from loadgen.predict import answer

PREDICTED = ("forecast", "replay", "calibration")


def verdict_of(tree: Mapping[str, Any], source: object) -> Verdict | GridVerdict:
    """The verdict in a tree of `source`, a file or words for the error. Raises RunError for a broken one."""
    kind: type[Verdict | GridVerdict] = RunVerdict
    if "study" in tree:
        kind = StudyVerdict
    elif "axes" in tree:
        kind = GridVerdict
    elif any(key in tree for key in PREDICTED) or (tree.get("clock") == "virtual" and not tree.get("basis")):
        kind = PredictionVerdict
    return from_tree(kind, tree, source)


def screen(verdict: Verdict) -> str:
    """The screen of a verdict."""
    return str(answers.answer(verdict))


def grid_screen(tree: Mapping[str, Any]) -> str:
    """The screen of a grid of predictions."""
    return prediction.grid_text(from_tree(GridVerdict, tree, "a test's grid"))


def screen_of_folder(path: Path) -> str:
    """The screen of a run or a study."""
    return str(answers.of_folder(path))


def text_of(tree: Mapping[str, Any]) -> str:
    """The screen of a verdict's tree."""
    verdict = verdict_of(tree, "a test's tree")
    assert not isinstance(verdict, GridVerdict)
    return screen(verdict)


def predict(*asked: Any, **how: Any) -> dict[str, Any]:
    """The tree of the engine model's verdict on a capacity."""
    return to_tree(answer.predict(*asked, **how))


def at_rate(*asked: Any, **how: Any) -> dict[str, Any]:
    """The tree of the engine model's verdict on one rate."""
    return to_tree(answer.at_rate(*asked, **how))


def cells(trees: Sequence[Mapping[str, Any]]) -> list[GridCell]:
    """The cells of a grid from their trees."""
    return [from_tree(GridCell, tree, "a test's cell") for tree in trees]
