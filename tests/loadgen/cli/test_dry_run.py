"""loadgen.cli.dry_run: the plan of a command, for people and for programs."""

import json
from typing import Any

import pytest

from conf import load
from loadgen.__main__ import main
from loadgen.cli.dry_run import PlannedRun, duration, minutes, text, tree
from loadgen.drive import programs


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


def test_the_time_is_said_before_a_command_begins() -> None:
    words = ["rate_qps=5", "duration_s=20", "fleet.warmup_requests=12"]
    probe = load(words)
    assert duration(PlannedRun(probe, programs.load_seconds(probe))) == (
        "about 28 s of load after the start, at most 2 min 58 s if answers are late"
    )
    fast = load([*words, "engine.time_scale=2"])
    assert duration(PlannedRun(fast, 25.0)) == (
        "about 14 s of load after the start, at most 1 min 29 s if answers are late (simulated clock x2)"
    )
    closed = PlannedRun(load(["concurrency=4", "requests=100"]), None)
    assert duration(closed) == "100 requests in a closed loop: as long as that takes"
    assert [minutes(s) for s in (34.2, 95, 511, 7400)] == ["34 s", "1 min 35 s", "8 min 31 s", "2 h 3 min"]


@pytest.mark.parametrize(("window_s", "transition_s"), [(20.0, 5.0), (60.0, 15.0), (600.0, 15.0)])
def test_a_short_probe_needs_a_short_transition(window_s: float, transition_s: float) -> None:
    assert programs.transition_s(window_s) == transition_s
    assert programs.load_seconds(load(["rate_qps=5", f"duration_s={window_s}"])) == window_s + transition_s


def test_the_example_prompt_of_a_chat_has_its_means_and_what_is_cut() -> None:
    shown = text(PlannedRun(load(["workload=character"]), 1.0))
    assert "#   character    1200 tokens\n" in shown and " of 15300, in 180 messages\n" in shown
