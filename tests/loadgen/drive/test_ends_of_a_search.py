"""`loadgen.run.verdicts` and `loadgen.drive.loss_recovery`: how short searches end, and what a wait costs."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analysis.results import summary
from analysis.results.verdicts import RunVerdict
from conf import load
from loadgen.drive import programs
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.programs import require, required_s, sweep
from loadgen.run import verdicts
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.virtual.toy_services import OneAtATime
from tests.support.virtual.virtual_drivers import Breaking, Changed, altered, driver

SHORT = ["search=quick", "search.budget_s=100", "search.window_s=15", "search.first_transition_s=5"]
WORDS = ["workload=smoke", "workload.output_tokens.mean=20", "slo.tpot_p90_ms=null", *SHORT]


def service(**row: Any) -> Changed:
    """It takes a tenth of a second for each request; its rows have other figures."""
    return Changed(OneAtATime(0.1), lambda rows: altered(rows, row))


def searched(guess_qps: float, *words: str, **row: Any) -> RunVerdict:
    """A search of a minute and a half around a guess."""
    drive, experiment, _ = driver([*WORDS, *words], Start(guess_qps, guess_qps), target=service(**row))
    return verdicts.sweep_verdict(experiment, drive, sweep(drive), "wall")


@pytest.mark.parametrize(
    ("guess_qps", "words", "row", "code"),
    [
        (8.0, ["slo.ttft_p90_ms=400"], {}, summary.EXIT_OK),
        (2.0, ["slo.ttft_p90_ms=4000"], {}, summary.EXIT_OPEN),
        (7.0, ["slo.ttft_p90_ms=400"], {"send_offset_ns": NS // 10}, summary.EXIT_VOID),
    ],
    ids=["bracketed", "far below the capacity", "a late client"],
)
def test_a_search_ends_with_its_code(
    guess_qps: float, words: list[str], row: dict[str, Any], code: int
) -> None:
    verdict = searched(guess_qps, *words, **row)
    assert verdict.exit_code == code and verdict.passed is (code == summary.EXIT_OK)
    assert verdict.valid is (code != summary.EXIT_VOID)


def late(rows: pa.Table) -> pa.Table:
    """The rows, the first token of every fifth request five seconds later."""
    name = "first_token_offset_ns"
    more = pa.array(np.where(rows["seq"].to_numpy() % 5 == 0, 5 * NS, 0))
    return rows.set_column(rows.schema.get_field_index(name), name, pc.add(rows[name], more))


def test_a_share_that_misses_a_bound_at_any_rate_is_said() -> None:
    words = [*WORDS[: -len(SHORT)], "search=standard", "slo.ttft_p90_ms=2000"]
    drive, experiment, _ = driver(words, Start(5.0, 5.0), target=Changed(OneAtATime(0.05), late))
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive), "wall")
    assert verdict.exit_code == summary.EXIT_OPEN and verdict.capacity and verdict.capacity.open_below
    assert "20 % missed the bound on p90 TTFT, hardly fewer at lower rates, and 10 % may" in verdict.reason


def test_the_wait_for_a_service_that_comes_back_costs_no_budget() -> None:
    target = Breaking(load([]), 1e9)
    drive, _, _ = driver([], target=target, repair=target.repair)
    before_s, began_ns = drive.elapsed_s(), target.now_ns()
    drive.loss.recover(TargetLost("1 of 1 replicas gone"))
    assert (target.now_ns() - began_ns) / NS >= 400
    assert drive.elapsed_s() == pytest.approx(before_s, abs=1)


@pytest.mark.parametrize(("rate_qps", "code"), [(5.0, summary.EXIT_OK), (14.0, summary.EXIT_SLO_MISSED)])
def test_a_probe_ends_with_its_code(rate_qps: float, code: int) -> None:
    """The service does ten requests a second."""
    drive, experiment, _ = driver([*WORDS, "slo.ttft_p90_ms=2000"], target=service())
    programs.offer_rate(drive, rate_qps, 30, 5)
    verdict = verdicts.probe_verdict(experiment, drive)
    assert (verdict.exit_code, verdict.valid, verdict.passed) == (code, True, code == summary.EXIT_OK)


@pytest.mark.parametrize(("rate_qps", "code"), [(4.0, summary.EXIT_OK), (14.0, summary.EXIT_SLO_MISSED)])
def test_a_required_rate_ends_with_its_code(rate_qps: float, code: int) -> None:
    words = [*WORDS, "slo.ttft_p90_ms=2000", f"rate_qps={rate_qps}"]
    drive, experiment, _ = driver(words, target=service())
    result = require(drive, rate_qps, required_s(experiment))
    verdict = verdicts.required_verdict(experiment, drive, result)
    assert (verdict.exit_code, verdict.valid, verdict.passed) == (code, True, code == summary.EXIT_OK)
