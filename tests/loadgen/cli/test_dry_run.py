"""loadgen.cli.dry_run: the plan of a command, for people and for programs."""

import json
from typing import Any

import pytest

from conf import load
from loadgen.__main__ import main
from loadgen.cli.dry_run import PlannedRun, text, tree


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--dry-run", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    plan: dict[str, Any] = json.loads(line)
    assert plan.pop("event") == "plan"
    return plan


def test_json_has_what_differs_and_the_times(capsys: pytest.CaptureFixture[str]) -> None:
    plan = printed(capsys, "probe", "rate_qps=2", "duration_s=60", "engine.time_scale=2")
    assert plan["changed"]["rate_qps"] == {"default": None, "value": 2}
    assert plan["config"]["slo.ttft_p90_ms"] == 2000 and plan["requests"] == 2 * plan["load_s"]
    assert plan["load_s"] < plan["longest_s"] == 2 * plan["longest_real_s"]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["compare", "b.layout=dp2_tp4_ep4"], "A is below; B differs in layout.name"),
        (["recommend", "demand.peak_qps=20", "recommend.layouts=[dp1_tp8_ep8]"], "the first one is below"),
        (["quality", "b.engine.defect=.02"], "A is below; B differs in engine.defect"),
        (["sweep", "matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4]"], "the first one is below"),
    ],
)
def test_every_verb_has_its_plan_as_json(
    words: list[str], note: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert any(line.startswith(note) for line in printed(capsys, *words)["notes"])


def test_a_closed_loop_and_a_virtual_clock_have_no_time() -> None:
    closed = PlannedRun(load(["concurrency=4", "requests=100"]), None)
    assert (tree(closed)["load_s"], tree(closed)["longest_s"]) == (None, None)
    assert "as long as that takes" in text(closed)
    virtual = PlannedRun(load([]), 0)
    assert tree(virtual)["longest_s"] == 0 and text(virtual).endswith("no load: a virtual clock")
