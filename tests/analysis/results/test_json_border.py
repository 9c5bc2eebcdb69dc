"""analysis.results.json_border: nothing is lost, and broken files are named."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis.results.json_border import from_tree, to_tree
from analysis.results.locations import RunError
from analysis.results.verdicts import RunVerdict
from analysis.stats.estimate import Estimate
from analysis.views import rates
from tests.support.runs.verdict_trees import verdict_of
from tests.support.words.words import TABLES

DATA = Path(__file__).parents[2] / "data"
SAVED = sorted((DATA / "verdicts").glob("*.json"))
GOLDEN = DATA / "golden_run" / "sweep.json"


@pytest.mark.parametrize("path", [*SAVED, GOLDEN], ids=lambda path: path.stem)
def test_a_verdict_comes_back_whole(path: Path) -> None:
    """Keys, nulls and absent keys are those of the file."""
    tree = json.loads(path.read_text())
    again = to_tree(verdict_of(tree, path))
    assert again == tree


def test_what_a_file_leaves_out_takes_its_default() -> None:
    tree = json.loads(GOLDEN.read_text())
    for key in ("schema_version", "basis", "requests", "prediction"):
        del tree[key]
    for key in ("arrivals", "sessions", "conversations", "time_scale", "kernels", "data_path"):
        del tree["experiment"][key]
    del tree["capacity"]["limits"]
    result = from_tree(RunVerdict, tree, "the file")
    assert (result.experiment.arrivals, result.experiment.time_scale) == ("poisson", 1.0)
    assert result.requests is None and result.basis is None
    assert result.capacity and result.capacity.limits is None


def test_a_key_without_a_field_is_left_out() -> None:
    tree = json.loads(GOLDEN.read_text())
    known = from_tree(RunVerdict, tree, "new")
    tree["experiment"]["colour"], tree["mood"] = "red", 1
    assert from_tree(RunVerdict, tree, "new") == known


@pytest.mark.parametrize(("path", "value", "message"), TABLES["values of a verdict"])
def test_a_value_of_another_kind_is_named(path: str, value: Any, message: str) -> None:
    tree = json.loads(GOLDEN.read_text())
    *above, name = path.split(".")
    place = tree
    for key in above:
        place = place[key]
    place[name] = value
    with pytest.raises(RunError) as refused:
        from_tree(RunVerdict, tree, "sweep.json")
    assert str(refused.value).startswith(f"sweep.json is broken: {message}")


def test_an_infinite_latency_is_a_word_in_the_file() -> None:
    tree = json.loads((DATA / "verdicts" / "probe.json").read_text())
    result = from_tree(RunVerdict, tree, "probe")
    limits = result.probe.limits | {"ttft": replace(result.probe.limits["ttft"], ms=Estimate(math.inf, 2e3))}
    late = replace(result, probe=replace(result.probe, limits=limits))
    tree = to_tree(late)
    assert tree["probe"]["limits"]["ttft"]["ms"]["value"] == "inf"
    assert from_tree(RunVerdict, json.loads(json.dumps(tree)), "probe") == late


def test_a_window_whose_answers_failed_is_shown_from_its_file() -> None:
    tree = json.loads(GOLDEN.read_text())
    tree["windows"][-1] |= {"valid": False, "void_reason": "node_lost", "ttft_p90_ms": "inf"}
    again = from_tree(RunVerdict, tree, "sweep.json")
    assert again.windows[-1]["ttft_p90_ms"] == math.inf
    (row,) = (row for row in rates.table(again.windows, again.experiment.slo).rows if "VOID" in row[-1])
    assert "infinite" in row and row[-1] == "VOID: node_lost"


def test_every_error_of_a_file_is_named_at_once() -> None:
    tree = json.loads(GOLDEN.read_text())
    del tree["experiment"]["engine"]
    tree |= {"valid": "yes", "exit_code": 1.5, "reason": 7}
    said = "its experiment.engine is missing; its valid is yes; its exit_code is 1.5; its reason is 7"
    with pytest.raises(RunError) as refused:
        from_tree(RunVerdict, tree, "x")
    assert str(refused.value) == f"x is broken: {said}"
    with pytest.raises(RunError, match=r"^x is broken: it is \[\]$"):
        from_tree(RunVerdict, [], "x")
