"""loadgen/drive/prepared_load.py, run/verdicts.py: failing answers end or void a run and are no capacity."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from analysis.live.screen import window_line
from analysis.live.state import done_window
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import metrics, records
from conf import Experiment, load
from loadgen.drive import programs
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.programs import sweep
from loadgen.run import verdicts
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.runs.verdict_trees import text_of
from tests.support.search.searches import swept
from tests.support.virtual.virtual_drivers import SILENT, Changed, altered, driver, engines


def failing(
    experiment: Experiment, row: dict[str, Any], since: int = -1, every: int = 1, first_seq: int = 0
) -> Changed:
    """A virtual target whose answers fail, one of each `every`, from a request and a window on.

    Window -1 is the warm-up.
    """

    def change(rows: pa.Table) -> pa.Table:
        seq, window = (rows[name].to_numpy() for name in ("seq", "window_index"))
        fails = (seq % every == 0) & (seq >= first_seq) & (window >= since)
        return altered(rows, row, where=fails & ~metrics.status_in(rows, records.PENDING))

    return Changed(engines(experiment), change)


def truncated(kind: str, finish_reason: str | None = "stop", **more: Any) -> dict[str, Any]:
    return {"status": "truncated", "error_kind": kind, "finish_reason": finish_reason} | more


LONG = truncated("token_count", error="12 tokens instead of 20")
FAILURES = yaml.safe_load((Path(__file__).parents[2] / "data" / "failing_answers.yaml").read_text())


@pytest.mark.parametrize(
    ("every", "row", "words", "remedy"), [*((1, *failure) for failure in FAILURES), (16, *FAILURES[0])]
)
def test_a_warm_up_that_nearly_all_fails_ends_the_run_with_the_reason_and_the_remedy(
    every: int, row: dict[str, Any], words: str, remedy: str
) -> None:
    """All but the first of `every` fail; of 1, it does too."""
    drive, _, events = driver([], target=failing(load([]), row, first_seq=int(every > 1)))
    drive.replan(warmup_requests=16)
    with pytest.raises(TargetLost) as refused:
        sweep(drive)
    message, failed = str(refused.value), 16 if every == 1 else 15
    assert message.startswith(f"warm-up: failed {failed} of 16: {failed} x ")
    assert words.replace("16 x", f"{failed} x") in message and remedy in message and "\n" not in message
    assert drive.windows.outcomes == [] and [kind for kind, _ in events] == ["warm"]


@pytest.mark.parametrize("every", [2, 4])
def test_a_warm_up_that_fails_in_part_ends_no_run(every: int) -> None:
    drive, _, events = driver([], target=failing(load([]), LONG, every=every))
    drive.replan(warmup_requests=16)
    programs.offer_rate(drive, 3.0, 60, 15)
    (text,) = [facts["text"] for kind, facts in events if kind == "warm"]
    assert text.endswith(
        f"failed {16 // every} of 16: {16 // every} x truncated token_count (another length than requested)"
    )


@pytest.mark.parametrize("row", [truncated("no_usage"), LONG])
def test_a_held_window_of_malformed_answers_is_void_and_says_what_failed(row: dict[str, Any]) -> None:
    drive, experiment, events = driver([], target=failing(load([]), row, since=0, every=3))
    programs.offer_rate(drive, 3.0, 60, 15)
    verdict = verdicts.probe_verdict(experiment, drive)
    rows = drive.windows.ledger.rows(0)
    text = text_of(to_tree(verdict) | {"requests": to_tree(verdicts.count_requests(rows, rows.num_rows))})
    assert (verdict.exit_code, verdict.valid) == (summary.EXIT_VOID, False)
    kind = f"truncated {row['error_kind']}"
    assert verdict.reason.startswith(
        f"malformed_answers: Mend the answers that fail whatever the load. Most: {kind}"
    )
    assert f"x {kind} (" in text and "\n  failed: " in text and "    malformed " in text
    done = done_window({"event": "window_done", **events[-1][1]})
    assert done and done.failed > 20
    assert (
        f"VOID malformed_answers; failed {done.failed} of {done.requests}: {done.failed} x {kind} ("
        in window_line(done)
    )


@pytest.mark.slow
def test_a_search_over_malformed_answers_claims_nothing_within_its_budget() -> None:
    target = failing(load(["search=standard"]), truncated("no_usage"), since=0)
    drive, experiment, _ = driver(["search=standard"], target=target)
    verdict = verdicts.sweep_verdict(experiment, drive, sweep(drive))
    assert (verdict.exit_code, verdict.valid) == (summary.EXIT_VOID, False)
    assert verdict.reason.startswith("malformed_answers: ") and "stream_options" in verdict.reason
    assert drive.elapsed_s() <= experiment.search.budget_s


@pytest.mark.parametrize("since", [-1, 0])
def test_errors_inside_the_stream_void_a_window_only_if_they_came_without_load_too(since: int) -> None:
    row = {"status": "http_error", "error_kind": "in_band", "error": "the queue is full"}
    drive, experiment, _ = driver([], target=failing(load([]), row, since=since, every=3))
    drive.replan(warmup_requests=32)
    programs.offer_rate(drive, 3.0, 60, 15)
    verdict = verdicts.probe_verdict(experiment, drive)
    assert verdict.exit_code == (summary.EXIT_VOID if since < 0 else summary.EXIT_SLO_MISSED)
    assert verdict.reason.startswith("malformed_answers: " if since < 0 else "p90 TTFT")


def test_a_search_of_answers_that_all_break_off_keeps_its_budget_and_has_no_result() -> None:
    """Load may break answers off, but not nearly all of them at every rate."""
    words = ["search=quick", "search.start=ramp", "search.budget_s=100"]
    row = truncated("connection_lost", None, error="reset by peer")
    drive, experiment, _ = driver(words, Start(), target=failing(load(words), row, since=0))
    result = swept(drive)
    # The least number of windows is granted beyond the budget.
    assert result.outcomes[-1].counts.start_ns <= (100 + 15) * NS
    verdict = verdicts.sweep_verdict(experiment, drive, result.stop)
    assert (verdict.exit_code, verdict.valid) == (summary.EXIT_TARGET, False)
    assert verdict.reason.startswith("at every rate: failed ")
    assert 'the first says "reset by peer". Look at the logs' in verdict.reason
    assert "no capacity is claimed" in text_of(to_tree(verdict))


def test_a_service_that_refuses_half_is_judged_and_not_called_dead() -> None:
    busy = SILENT | {"status": "http_error", "error_kind": "429", "error": "busy", "output_tokens": None}
    drive, experiment, _ = driver([], target=failing(load([]), busy | {"end_offset_ns": 1}, every=2))
    programs.offer_rate(drive, 3.0, 60, 15)
    verdict = verdicts.probe_verdict(experiment, drive)
    assert (verdict.exit_code, verdict.valid) == (summary.EXIT_SLO_MISSED, True)
