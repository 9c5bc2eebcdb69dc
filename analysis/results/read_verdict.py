"""The kind of verdict that a tree of JSON holds, by the keys that this kind alone has; knows no file."""

from collections.abc import Mapping
from typing import Any

from analysis.results.json_border import from_tree
from analysis.results.types.prediction_verdict import GridVerdict, PredictionVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict

Verdict = RunVerdict | StudyVerdict | PredictionVerdict
"""A verdict on one question; a grid has one for every cell."""
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
