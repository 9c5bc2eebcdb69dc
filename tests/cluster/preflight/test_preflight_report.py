"""`cluster.preflight.preflight` and `power_meter` without Ray: the report, and when a tool is run again."""

import json
from pathlib import Path

import pytest

from cluster import __main__ as command
from cluster.preflight import power_meter
from cluster.preflight.checks import Finding
from cluster.preflight.gpu_power import PowerReading
from cluster.preflight.preflight import PreflightReport


def test_the_report_groups_equal_verdicts_and_counts_them() -> None:
    def found(node: str, status: str, figure: str, remedy: str = "") -> Finding:
        wanted = "at least 65536"
        return Finding(status, figure, wanted, remedy, check="open files", node=node)  # type: ignore[arg-type]

    nodes = ("a", "b", "c", "d")
    good = tuple(found(node, "pass", "1048576") for node in nodes[:3])
    report = PreflightReport(nodes, (*good, found("d", "fail", "1024", "raise it")))
    header, passed, failed, summary = report.lines()
    assert "3 nodes" in passed and failed.split()[2:5] == ["d", "fail", "1024"]
    assert failed.endswith("raise it")
    assert {line.index("at least") for line in (passed, failed)} == {header.index("expected")}
    assert summary == "preflight of 4 nodes: 3 pass, 0 warn, 1 fail, 0 unknown"
    assert report.exit_code == 5
    assert PreflightReport(nodes, good).exit_code == 0
    tree = report.tree()
    assert json.loads(json.dumps(tree)) == tree
    assert tree["counts"] == {"pass": 3, "warn": 0, "fail": 1, "unknown": 0}


def test_checks_that_had_nothing_to_look_at_share_a_line() -> None:
    bare = tuple(
        Finding("unknown", "no GPU here", "", check=check, node="a") for check in ("VRAM", "ECC errors")
    )
    assert PreflightReport(("a",), bare).lines()[1:] == [
        "not checked on 1 node, no GPU here: VRAM, ECC errors",
        "preflight of 1 node: 0 pass, 0 warn, 0 fail, 2 unknown",
    ]


@pytest.mark.parametrize(("source", "waits"), [("hwmon", False), ("amd-smi", True), (None, True)])
def test_a_tool_is_not_run_again_at_once_and_the_kernel_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, waits: bool
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(power_meter, "read_power", lambda root, run: PowerReading(source=source))
    monkeypatch.setattr(power_meter, "TOOL_PERIOD_S", 3600.0)
    monkeypatch.setattr(power_meter.time, "sleep", slept.append)
    node = power_meter.NodePower(tmp_path)
    assert [node.read().source for _ in range(3)] == [source] * 3
    assert slept[0] == 0 and [seconds > 0 for seconds in slept[1:]] == [waits, waits]


def test_a_cluster_that_does_not_answer_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["preflight", "cluster=mi325x_1n", "cluster.address=127.0.0.1:9"]) == 5
    said = capsys.readouterr().err
    assert said.startswith("error: cannot join the Ray cluster at 127.0.0.1:9: ") and "refused" in said
