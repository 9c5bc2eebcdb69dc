"""analysis.rejudge: a search under other bounds, from its rows alone."""

import json
from pathlib import Path

import pytest

from analysis import Run, RunError, load_run, rejudge
from analysis.__main__ import main
from analysis.results.json_border import from_tree
from analysis.results.verdicts import RunVerdict
from tests.support.runs.golden import GOLDEN, changed


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(GOLDEN)


def test_by_its_own_bounds_a_search_has_its_own_answer(run: Run) -> None:
    assert run.verdict and run.verdict.capacity
    recorded = run.verdict.capacity.sampling
    again = rejudge(run, "slo.tpot_p90_ms=100").capacity
    assert again and again.binding == run.verdict.capacity.binding
    # The prior alone is wider.
    assert again.qps_per_node.value == pytest.approx(recorded.value, rel=0.005)
    assert again.qps_per_node.certified == pytest.approx(recorded.certified, rel=0.02)


def test_a_stricter_bound_lowers_the_capacity_and_may_bind_instead(run: Run) -> None:
    verdict = [rejudge(run, word).capacity for word in ("slo.tpot_p90_ms=100", "slo.tpot_p90_ms=80")]
    assert verdict[0] and verdict[1] and verdict[1].qps_per_node.value < verdict[0].qps_per_node.value
    ttft = rejudge(run, "slo.ttft_p90_ms=900")
    assert ttft.capacity and ttft.capacity.binding == "ttft" and ttft.experiment.slo.bound_ms("ttft") == 900
    assert ttft.reason.startswith("judged by p90 TTFT <= 900 ms, p90 TPOT <= 100 ms with the windows")
    assert ttft.capacity.constants is None, "they were drawn for other bounds"


def test_another_kind_of_bound_is_counted_from_the_rows(run: Run) -> None:
    capacity = rejudge(run, "slo.e2e_p90_ms=15000", "slo.ttft_p90_ms=null").capacity
    assert capacity and set(capacity.limits or ()) == {"tpot", "e2e_p90"}


def test_the_lag_that_a_window_may_have_follows_the_bound(run: Run) -> None:
    bounds = {check.name: check.bound for check in rejudge(run, "slo.ttft_p90_ms=900").checks or ()}
    assert bounds["send_lag_p99"] == 9 and bounds["actor_cpu"] == 0.6


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("slo.tpot_p90_ms=300", "offered at most 3.9 QPS per node, and these bounds allow more: python -m"),
        ("slo.ttft_p90_ms=400", "offered at least 2.6 QPS per node, and these bounds allow less: python -m"),
        ("slo.itl_p99_ms=100", "did not record what p99 ITL needs: that bound needs a new run"),
        ("slo.itl_pooled_p99_ms=30", "counted no gaps against p99 pooled ITL <= 30 ms: that bound needs"),
        ("seed=3", "'seed=3' is no bound; give slo.KEY=VALUE, such as slo.ttft_p90_ms=500"),
        ("slo.tfft_p90_ms=3", "slo.tfft_p90_ms"),
    ],
)
def test_what_was_not_offered_or_not_recorded_is_refused_in_one_line(
    run: Run, word: str, message: str
) -> None:
    with pytest.raises(RunError) as refused:
        rejudge(run, word)
    assert message in str(refused.value) and "\n" not in str(refused.value)


def test_a_run_that_claims_nothing_claims_nothing_by_other_bounds(tmp_path: Path) -> None:
    void = load_run(changed(tmp_path / "void", valid=False, exit_code=4, reason="client_limited"))
    with pytest.raises(RunError, match="is void .client_limited.: no bound makes it valid"):
        rejudge(void, "slo.tpot_p90_ms=80")
    probe = load_run(changed(tmp_path / "probe", capacity=None))
    with pytest.raises(RunError, match="searched for no capacity"):
        rejudge(probe, "slo.tpot_p90_ms=80")
    (tmp_path / "void" / "sweep.json").unlink()
    with pytest.raises(RunError, match="did not end: python -m loadgen resume"):
        rejudge(load_run(tmp_path / "void"), "slo.tpot_p90_ms=80")


def test_the_command_prints_the_verdict_by_the_other_bound(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(GOLDEN), "slo.tpot_p90_ms=80"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert "capacity 3.12, sampling noise alone" in first and "p90 TPOT <= 80 ms with the windows" in second
    assert main(["show", str(GOLDEN), "seed=3"]) == 2
    assert capsys.readouterr().err.startswith("error: 'seed=3' is no bound")
    for more in ("slo.tpot_p90_ms=80", "--json"):
        assert main(["show", str(GOLDEN), more, "--recompute"]) == 2
        assert "by its own bounds, as text: leave " in capsys.readouterr().err


def test_the_screen_has_the_whole_verdict_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(GOLDEN), "--json"]) == 0
    assert from_tree(RunVerdict, json.loads(capsys.readouterr().out), "the line") == run.verdict
    assert main(["show", str(GOLDEN), "slo.tpot_p90_ms=80", "--json"]) == 0
    again = from_tree(RunVerdict, json.loads(capsys.readouterr().out), "the line")
    assert again.experiment.slo.tpot_p90_ms == 80 and again == rejudge(run, "slo.tpot_p90_ms=80")
