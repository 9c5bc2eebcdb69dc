"""loadgen/drive/programs.py on a virtual clock: decisions, rows and conclusions of whole searches."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import records
from conf import load
from loadgen.cli import engine_model
from loadgen.drive import programs
from loadgen.drive.loss_recovery import TargetLost
from loadgen.drive.prepared_load import QueueTimeNotReported
from loadgen.drive.programs import sweep
from loadgen.fleet.target import Observation
from loadgen.run import verdicts
from loadgen.search.ramp import VOID_STEPS
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS, ArrivalSchedule
from tests.support.runs.verdict_trees import text_of
from tests.support.search.scenarios import truths
from tests.support.search.searches import swept
from tests.support.virtual.shared_processor import SharedProcessor
from tests.support.virtual.virtual_drivers import (
    LOST,
    Altering,
    Breaking,
    Changed,
    Hanging,
    Healing,
    driver,
    engines,
    probed,
    searched,
)
from tests.support.virtual.virtual_target import VirtualTarget


@pytest.mark.slow
def test_half_a_virtual_hour_finds_the_capacity_of_the_default_node() -> None:
    tree, _, events = searched(["search=virtual", "search.budget_s=1800"])
    assert (tree["exit_code"], tree["valid"], tree["capacity"]["binding"]) == (0, True, "tpot")
    q = tree["capacity"]["qps_per_node"]
    # The engine model's own long runs put the knee near 3.84 QPS.
    assert 3.3 < q["low"] < q["certified"] < q["value"] < q["high"] < 4.4
    assert 3.7 < q["value"] < 4.0
    assert [kind for kind, _ in events].count("window_done") == len(tree["windows"])
    assert "QPS per node, sampling noise alone: 95 % interval" in text_of(tree)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer_and_four_nodes_serve_four_times_the_load() -> None:
    usual = ["search=standard", "search.budget_s=450"]
    words = usual, usual, [*usual, "seed=2"], [*usual, "cluster=laptop_4n"]
    one, again, other, four = (swept(driver(each)[0]).capacity for each in words)
    assert one and again and other and four
    assert one.qps_per_node == again.qps_per_node != other.qps_per_node
    # The pool is at least as good as its nodes alone, and not another machine.
    assert 0.95 < four.qps_per_node / one.qps_per_node < 1.25


@pytest.mark.slow
def test_an_unreachable_bound_is_said_not_guessed() -> None:
    tree, *_ = searched(["search=virtual", "search.budget_s=3600", "slo.tpot_p90_ms=5"])
    assert (tree["exit_code"], tree["passed"]) == (summary.EXIT_SLO_MISSED, False)


def test_a_service_above_the_highest_rate_is_a_lower_bound() -> None:
    tree, *_ = searched(["search=standard", "search.highest_qps=2"])
    assert (tree["exit_code"], tree["passed"]) == (summary.EXIT_OPEN, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        ({"send_offset_ns": NS // 10}, "client_limited"),
        ({"replica_id": "stranger"}, "replica_lost"),
        ({"reads": 1}, "burst_delivery"),
    ],
)
def test_an_invalid_measurement_is_void_never_a_number(spoil: dict[str, Any], reason: str) -> None:
    words = ["search=quick"]
    target = Altering(load(words), **spoil)
    drive, experiment, _ = driver(words, Start(5.1, prediction_qps=3.35), target=target)
    drive.replan(replicas=frozenset({"0"}))
    tree = to_tree(verdicts.sweep_verdict(experiment, drive, sweep(drive)))
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_VOID, False, False)
    assert tree["reason"].startswith(reason)
    assert "no capacity is claimed" in text_of(tree)


QUEUE = ["search=quick", "slo.ttft_p90_ms=null", "slo.tpot_p90_ms=null", "slo.queue_p90_ms=500"]


@pytest.mark.parametrize("warmup", [0, 16])
def test_a_bound_on_a_queue_that_no_answer_tells_is_neither_kept_nor_missed(warmup: int) -> None:
    """It is said after the warm-up; without one every window is void."""
    drive, experiment, _ = driver(QUEUE, Start(5.1, 3.35), target=Altering(load(QUEUE), queue_us=None))
    drive.replan(warmup_requests=warmup)
    if warmup:
        with pytest.raises(
            QueueTimeNotReported, match="queue_untold: 0% of the warm-up's answers tell .*Start vLLM"
        ):
            sweep(drive)
        assert drive.windows.outcomes == []
        return
    tree = to_tree(verdicts.sweep_verdict(experiment, drive, sweep(drive)))
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (summary.EXIT_VOID, False, False)
    assert tree["reason"].startswith("queue_untold: Start vLLM with --enable-per-request-metrics")


@pytest.mark.slow
def test_a_search_under_a_bound_on_the_queue_finds_what_the_engine_model_says() -> None:
    drive, experiment, _ = driver(["search=standard", *QUEUE[1:]], Start(5.1, 3.9))
    tree = to_tree(verdicts.sweep_verdict(experiment, drive, sweep(drive)))
    result = tree["capacity"]["qps_per_node"]
    predicted = engine_model.predict(experiment, draws=0)
    says = predicted.capacity.qps_per_node
    assert result["low"] < (says.high or 0) and (says.low or 0) < result["high"]
    assert tree["capacity"]["binding"] == "queue_p90"


def test_void_ramp_steps_are_void_not_a_missed_bound() -> None:
    experiment = load(["search=standard"])
    tree, *_ = searched(
        ["search=standard"], target=Altering(experiment, engine_steps=100, engine_late_steps=5)
    )
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_VOID, False)
    assert tree["reason"].startswith("engine_late") and len(tree["windows"]) == VOID_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("off", [1 / 3, 3.0, 12.0])
def test_a_foreign_server_is_found_from_a_wrong_guess(off: float) -> None:
    words = ["search=quick", "workload=smoke", "workload.output_tokens.mean=100", "slo.tpot_p90_ms=40"]
    truth_qps = truths()["PS"]
    start, target = Start(off * truth_qps, ttft_s=2.0), VirtualTarget(SharedProcessor())
    result = swept(driver(words, start, target=target)[0])
    steps, windows = ([o for o in result.outcomes if o.plan.kind == kind] for kind in ("ramp", "window"))
    # What an overload left in flight is gone when the next step begins: nothing low is bad because of it.
    assert not any(step.bad and step.plan.rate_qps < 0.8 * truth_qps for step in steps)
    assert any(step.aborted for step in steps) and len(windows) >= 4
    assert windows[0].counts.start_ns - steps[0].counts.start_ns < (240 / 3 + 5) * NS
    assert result.capacity is not None and result.capacity.low < truth_qps < result.capacity.high


def disturbed(words: list[str], change: Callable[[dict[str, Any]], dict[str, Any]]) -> Changed:
    """A virtual target that shows some rows otherwise than they were."""

    def changed(rows: pa.Table) -> pa.Table:
        others = [row | change(row) for row in rows.to_pylist()]
        return pa.Table.from_pylist(others, schema=records.PROGRESS)

    return Changed(engines(load(words)), changed)


def sent_late(row: dict[str, Any], by_ns: int) -> dict[str, Any]:
    """A row of a client that sent so much later, and whose latencies are longer by that."""
    seen = {name: row[name] for name in row if name.endswith("_offset_ns") and row[name] is not None}
    return {name: offset_ns + by_ns for name, offset_ns in seen.items()}


@pytest.mark.slow
def test_a_late_client_does_not_void_a_ramp_step_that_it_cannot_decide() -> None:
    words = ["search=quick"]
    late = lambda row: sent_late(row, 3 * NS // 100 if row["phase"] == "ramp" else 0)  # noqa: E731
    tree, drive, _ = searched(words, target=disturbed(words, late))
    steps = [outcome for outcome in drive.windows.outcomes if outcome.plan.kind == "ramp"]
    judged = [step.verdict for step in steps]
    assert {(verdict.valid, verdict.reason) for verdict in judged} == {(False, "client_limited")}
    assert not any(step.void for step in steps) and {step.bad for step in steps} == {False, True}
    assert tree["valid"] and all(not row["valid"] for row in tree["windows"] if row["kind"] == "ramp")


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda row: {"engine_steps": 100, "engine_late_steps": 5},
        lambda row: sent_late(row, 3 * NS),
    ],
    ids=["engine_late", "a lag beyond the bound"],
)
def test_a_short_disturbance_costs_a_repeat_and_not_the_run(change: Any) -> None:
    words = ["search=quick"]
    short = lambda row: change(row) if row["due_ns"] < 3 * NS else {}  # noqa: E731
    tree, drive, _ = searched(words, target=disturbed(words, short))
    first, again = drive.windows.outcomes[:2]
    assert first.void and not again.void and again.plan.rate_qps == first.plan.rate_qps
    assert tree["valid"] and len([row for row in tree["windows"] if row["kind"] == "window"]) >= 3


def test_a_service_that_dies_in_a_held_window_is_lost_and_not_slow() -> None:
    drive, _, events = driver([], target=Breaking(load([]), 90.0))
    with pytest.raises(TargetLost, match="of the newest"):
        programs.offer_rate(drive, 3.0, 300, 15)
    assert events[-1] == ("target_lost", events[-1][1]) and events[-1][1]["last"] == 0


def test_a_load_actor_lost_in_the_warm_up_is_said_too() -> None:
    words = ["search=standard"]
    tree, *_ = searched(words, target=Healing(load(words), at_s=0.0, times=0))
    assert (tree["exit_code"], tree["windows"]) == (summary.EXIT_VOID, [])
    assert tree["reason"].startswith("actor_lost: lost load actor 1 (killed)")


@pytest.mark.slow
def test_a_replaced_load_actor_voids_its_window_and_the_search_goes_on() -> None:
    words = ["search=standard"]
    tree, drive, events = searched(words, target=Healing(load(words), at_s=300, times=1))
    void = [outcome.verdict.reason for outcome in drive.windows.outcomes if not outcome.verdict.valid]
    assert tree["exit_code"] == summary.EXIT_OK
    # The window it died in; the one before too, if that still waited for answers of its own.
    assert set(void) <= {"actor_lost", "client_limited"} and void.count("actor_lost") == 1
    assert [kind for kind, _ in events].count("healed") == 1


def test_a_service_that_hangs_in_a_held_window_is_lost_not_slow() -> None:
    words = ["search.settle_s=20"]
    drive, _, _ = driver(words, target=Hanging(load(words), 50.0))
    with pytest.raises(TargetLost, match="the service hangs"):
        programs.offer_rate(drive, 3.0, 60, 15)


def test_an_actor_that_dies_with_answers_of_a_finished_window_voids_it() -> None:
    class Late(VirtualTarget):
        """Loses an actor only after the window is over, while its last answers are awaited."""

        def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
            progress = super().run(schedule, min(until_ns, 76 * NS))
            if until_ns < 76 * NS:
                return progress
            later = super().run(None, until_ns)
            ended, pending = (
                rows.filter(pc.invert(self.mine(rows))) for rows in (later.ended, later.pending)
            )
            return Observation(pa.concat_tables([progress.ended, ended]), pending, [], [LOST])

        def mine(self, rows: pa.Table) -> pa.Array:
            return pc.equal(pc.bit_wise_and(rows["seq"], 1), 1)

    tree, *_ = probed([], target=Late(engines(load([]))), load=(5.0, 60, 15))
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_VOID, False)
    assert tree["reason"].startswith("actor_lost")


def test_a_probe_of_one_token_answers_has_no_tpot_to_miss() -> None:
    tree, *_ = probed(["workload=smoke", "workload.output_tokens.mean=1"], load=(2.0, 60, 5))
    assert (tree["exit_code"], tree["probe"]["limits"]["tpot"]["passed"]) == (summary.EXIT_OK, None)


def test_a_probe_without_requests_says_nothing() -> None:
    tree, *_ = probed([], load=(0.01, 20, 5))
    assert tree["exit_code"] == summary.EXIT_VOID and "say nothing" in tree["reason"]


def test_a_probe_counts_what_never_ended_as_infinitely_late() -> None:
    experiment = load([])
    hanging = {"status": "pending", "end_offset_ns": None, "output_tokens": 3}
    drive, _, _ = driver([], target=Altering(experiment, **hanging))
    programs.offer_rate(drive, 2.0, 60, 5)
    tree = to_tree(verdicts.probe_verdict(experiment, drive))
    assert tree["exit_code"] == summary.EXIT_SLO_MISSED
    assert tree["probe"]["limits"]["ttft"]["ms"]["value"] == "inf"


@pytest.mark.slow
def test_every_offered_request_is_seen_and_ends() -> None:
    offered: list[int] = []
    drive, _, _ = driver(
        ["search=quick"], Start(5.1, 3.35), plan_saved=lambda s: offered.extend(s.seq.tolist())
    )
    sweep(drive)
    seen = drive.windows.ledger.rows(*range(-1, len(drive.windows.outcomes)))
    assert set(seen["status"].to_pylist()) == {records.OK}
    assert set(offered) >= set(seen["seq"].to_pylist())
    assert len(offered) == len(set(offered))


class Unwilling(VirtualTarget):
    """Starts the first requests of a closed loop and forgets the others."""

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        if schedule is not None and schedule.concurrency:
            schedule = schedule.where(slice(0, 8))
        return super().run(schedule, until_ns)


def test_a_closed_loop_in_which_nothing_happens_any_more_ends() -> None:
    target = Unwilling(engines(load([])))
    drive, experiment, events = driver(["concurrency=4", "requests=20"], target=target)
    programs.offer_load(drive, experiment)
    (told,) = [facts["text"] for kind, facts in events if kind == "abort"]
    assert told == "closed loop 0 ended early: nothing is in flight, and 12 of 20 requests were never started"
    assert len(drive.windows.outcomes) == 1
