"""Preflight without Ray: which nodes serve, and the report."""

import json
from dataclasses import replace

import pytest

from cluster import __main__ as command
from cluster.preflight.checks import Finding, InspectedNode
from cluster.preflight.preflight import PreflightReport
from cluster.ray_session.own_machine import LOAD_ROLE
from tests.support.machine.node_files import HEALTHY

WITHOUT_GPUS = replace(HEALTHY, gpus=())


@pytest.mark.parametrize(
    ("role", "ray_gpus", "host", "serves"),
    [
        ("", 8.0, HEALTHY, True),
        ("gpu", 0.0, WITHOUT_GPUS, True),
        ("", 8.0, WITHOUT_GPUS, True),
        ("head", 0.0, WITHOUT_GPUS, False),
        (LOAD_ROLE, 8.0, HEALTHY, False),
    ],
    ids=["GPUs", "role gpu", "pretended GPUs", "a head without GPUs", "kept for load"],
)
def test_engines_run_where_gpus_are_and_no_load_actors(role, ray_gpus, host, serves) -> None:
    assert InspectedNode("n", role, ray_gpus, False, host).serves is serves


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


def test_a_cluster_that_does_not_answer_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["preflight", "cluster=mi325x_1n", "cluster.address=127.0.0.1:9"]) == 5
    output = capsys.readouterr().err
    assert output.startswith("error: cannot join the Ray cluster at 127.0.0.1:9: ") and "refused" in output
