"""analysis.capacity.checks: which windows are void, for which reason, and what is merely noted."""

import heapq
import math
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from analysis.capacity.checks import RULES, cut_off, judge_run, judge_window
from analysis.capacity.growing_queue import slope_t
from analysis.capacity.rules import REASONS, Check, Verdict, WindowEvidence
from analysis.capacity.window_counts import NS, Window
from analysis.rows import records
from analysis.rows.parquet import OTHER_WORD
from analysis.rows.records import table
from conf.specs.experiment import Slo
from tests.support.words.words import TABLES

MS = 1_000_000
SLO = Slo("s", ttft_p90_ms=1000.0, tpot_p90_ms=50.0)
WITH_QUEUE = Slo("s", ttft_p90_ms=1000.0, at_most_ms={"queue_p90": 500.0})
WINDOW = Window(0, "window", 10.0, 1, 0, 10 * NS, 55 * NS, 55 * NS)


def rows(count=450, **more):
    """An even window of healthy requests; a list in `more` gives the values of the first rows."""
    healthy = {
        "window_index": 0,
        "status": "ok",
        "replica_id": "r0",
        "send_offset_ns": MS,
        "first_token_offset_ns": 100 * MS,
        "last_token_offset_ns": 900 * MS,
        "end_offset_ns": 901 * MS,
        "output_tokens": 50,
        "reads": 50,
        "engine_steps": 50,
        "engine_late_steps": 0,
    }
    plain = {key: value for key, value in more.items() if not isinstance(value, list)}
    made = [healthy | plain | {"due_ns": 10 * NS + i * 45 * NS // count} for i in range(count)]
    for key, values in more.items():
        for row, value in zip(made, values if isinstance(values, list) else [], strict=False):
            row[key] = value
    return made


def judged(made, **evidence):
    return judge_window(table(made), WINDOW, SLO, WindowEvidence(**evidence))


def named(verdict, name):
    return next(check for check in verdict.checks if check.name == name)


HALF_SHARED = {"prompt_tokens": 1000, "requested_input_tokens": 1000, "shared_tokens": 500}
HEALTH = {"cpu_share": 0.4, "run_share": 0.9, "stall_ms": 9.0}
IN_FLIGHT = 450 / 45 * 0.901 - 0.901**2 * 10 / 2 / 45


def test_a_healthy_window_is_valid():
    told = {"time_scale": 1.0, "engine_first_token_ns": 97 * MS}
    made = rows(requested_input_tokens=5600, prompt_tokens=5600, cached_tokens=0, **told)
    verdict = judged(
        made, planned=450, expected_replicas={"r0", "r1"}, health={"a": HEALTH}, in_flight_mean=IN_FLIGHT
    )
    assert (verdict.valid, verdict.reason, verdict.remedy) == (True, "", "")
    assert named(verdict, "send_lag_p99").value == 1.0
    assert all(check.passed for check in verdict.checks)


@pytest.mark.parametrize(
    ("made", "evidence", "reason"),
    [
        (rows(send_offset_ns=[11 * MS] * 6), {}, "client_limited"),
        (rows(status=["missed"] * 3), {}, "client_limited"),
        (rows(status=["missed"] * 3, error_kind=["no_file", "no_port", "no_memory"]), {}, "client_limited"),
        (rows(440), {"planned": 450}, "client_limited"),
        (rows(), {"health": {"a": {"cpu_share": 0.2}, "b": {"cpu_share": 0.61}}}, "client_limited"),
        (rows(engine_late_steps=[50] * 5), {}, "engine_late"),
        (rows(engine_first_token_ns=50 * MS, first_token_offset_ns=[6000 * MS] * 46), {}, "path_slow"),
        (rows(engine_first_token_ns=50 * MS, first_token_offset_ns=[1100 * MS] * 5), {}, "path_slow"),
        (rows(engine_first_token_ns=50 * MS, first_token_offset_ns=151 * MS), {}, "path_slow"),
        (rows(replica_id=["r9"]), {"expected_replicas": ["r0"]}, "replica_lost"),
        (rows(), {"lost_actors": ["c1"]}, "actor_lost"),
        (rows(reads=[2] * 5), {}, "burst_delivery"),
        (rows(requested_input_tokens=100, prompt_tokens=102), {}, "wrong_prompts"),
        (rows(prompt_tokens=1000, cached_tokens=[500] * 10), {}, "wrong_prefix_hits"),
        (rows(**HALF_SHARED, cached_tokens=474), {}, "wrong_prefix_hits"),
        (rows(**HALF_SHARED, cached_tokens=511), {}, "wrong_prefix_hits"),
    ],
)
def test_a_failed_gate_voids_the_window_and_names_a_remedy(made, evidence, reason):
    verdict = judged(made, **evidence)
    assert (verdict.valid, verdict.reason) == (False, reason)
    assert verdict.remedy == REASONS[reason].remedy


def failing(count, status, kind, finish_reason=None, of=450):
    """A window in which so many answers failed, each as one kind."""
    more = {"status": status, "error_kind": kind, "finish_reason": finish_reason}
    return rows(of, **{name: [value] * count for name, value in more.items()})


@pytest.mark.parametrize(("status", "kind", "finish_reason", "advice"), TABLES["answers that are malformed"])
def test_a_failure_of_form_is_never_load_and_voids_the_window(status, kind, finish_reason, advice):
    verdict = judged(failing(5, status, kind, finish_reason))
    assert (verdict.valid, verdict.reason) == (False, "malformed_answers")
    assert f"{status} {kind}" in verdict.remedy and advice in verdict.remedy
    assert judge_run([verdict], 1).remedy == verdict.remedy
    assert judged(failing(4, status, kind, finish_reason)).valid


MAY_BE_LOAD = TABLES["failures that load may cause"]


@pytest.mark.parametrize(
    ("status", "kind", "finish_reason"), [*MAY_BE_LOAD, *TABLES["failures of load alone"]]
)
def test_a_failure_that_load_may_cause_is_an_answer_that_never_came(status, kind, finish_reason):
    whole, few = (table(failing(count, status, kind, finish_reason, 64)) for count in (0, 3))
    assert judged(failing(300, status, kind, finish_reason)).valid
    assert judged(failing(300, status, kind, finish_reason), unloaded=whole).valid
    assert judged(failing(300, status, kind, finish_reason), unloaded=few).valid, "it grew with the load"


@pytest.mark.parametrize(("status", "kind", "finish_reason"), MAY_BE_LOAD)
def test_a_failure_that_does_not_grow_with_load_voids_the_window(status, kind, finish_reason):
    unloaded = table(failing(20, status, kind, finish_reason, 64))
    verdict = judged(failing(150, status, kind, finish_reason), unloaded=unloaded)
    assert (verdict.reason, named(verdict, "malformed").value) == ("malformed_answers", 150 / 450)
    assert f"{status} {kind}" in verdict.remedy
    assert judged(failing(300, status, kind, finish_reason), unloaded=unloaded).valid


@pytest.mark.parametrize(
    ("made", "evidence"),
    [
        (rows(send_offset_ns=[11 * MS] * 4), {}),
        (rows(status=["missed"] * 2), {}),
        (rows(status=["timeout"] * 300), {}),
        (rows(status=["conn_error"] * 300, send_offset_ns=[None] * 300), {}),
        (rows(engine_late_steps=[50] * 4), {}),
        (rows(engine_first_token_ns=50 * MS, first_token_offset_ns=[6000 * MS] * 4), {}),
        (rows(engine_first_token_ns=50 * MS, first_token_offset_ns=150 * MS), {}),
        (rows(engine_first_token_ns=5950 * MS, first_token_offset_ns=6000 * MS), {}),
        (rows(first_token_offset_ns=6000 * MS, last_token_offset_ns=6800 * MS), {}),
        (rows(reads=[2] * 4), {}),
        (rows(output_tokens=9, reads=1), {}),
        (rows(), {"health": {"a": {"cpu_share": 0.6, "run_share": 0.3, "stall_ms": 500.0}}}),
        (rows(prompt_tokens=1000, cached_tokens=[500] * 8), {}),
        (rows(**HALF_SHARED, cached_tokens=476), {}),
        (rows(**HALF_SHARED, cached_tokens=509), {}),
        (rows(status=["pending"] * 9, send_offset_ns=[None] * 9), {"planned": 450}),
    ],
)
def test_a_failing_service_or_a_small_flaw_does_not(made, evidence):
    assert judged(made, **evidence).valid


@pytest.mark.parametrize(
    ("queue_us", "passed", "reason"),
    [
        (400_000, True, ""),
        ([None] * 4 + [0] * 446, True, ""),
        ([None] * 5 + [0] * 445, False, "queue_untold"),
        (None, False, "queue_untold"),
    ],
)
def test_a_bound_on_the_queue_needs_answers_that_tell_it(queue_us, passed, reason):
    verdict = judge_window(table(rows(queue_us=queue_us)), WINDOW, WITH_QUEUE)
    assert (named(verdict, "queue_told").passed, verdict.reason) == (passed, reason)
    assert "queue_told" not in {check.name for check in judged(rows(queue_us=queue_us)).checks}


def test_what_is_not_given_is_unknown_and_does_not_pass():
    bare = rows(replica_id=None, reads=None, engine_steps=None, engine_late_steps=None)
    verdict = judged(bare, expected_replicas=["r0"])
    unknown = {check.name for check in verdict.checks if check.passed is None}
    assert verdict.valid
    assert unknown == {
        *("actor_cpu", "run_share", "loop_stall", "engine_late_steps", "unexpected_replicas", "little"),
        *("burst_delivery", "prompt_tokens_error", "prefix_hit_error", "path_p90", "path_over"),
    }
    assert all(check.value is None for check in verdict.checks if check.passed is None)


@pytest.mark.parametrize(
    "more", [{"status": ["lost"]}, {"status": ["truncated"], "error_kind": ["interrupted"]}]
)
def test_a_request_that_ended_with_its_load_actor_voids_the_window(more):
    verdict = judged(rows(**more))
    assert (verdict.valid, verdict.reason) == (False, "actor_lost")
    assert (named(verdict, "lost_actors").value, named(verdict, "lost_actors").passed) == (1.0, False)


def test_of_several_reasons_the_cause_is_named_and_not_what_follows_from_it():
    """A lost load actor leaves requests unsent too, and a lost host its actors."""
    made = rows(status=["missed"] * 40, send_offset_ns=[None] * 40)
    assert judged(made).reason == "client_limited"
    assert judged(made, lost_actors=["c1"]).reason == "actor_lost"
    assert judged(made, lost_actors=["c1"], lost_nodes=["node1"]).reason == "node_lost"
    host = judged(made, lost_actors=["c1"], lost_nodes=["node1"], lost_load_hosts=["load1"])
    assert host.reason == "load_host_lost" and "the load host that the run names" in host.remedy


def test_rows_outside_the_window_do_not_count():
    outside = [row | {"due_ns": 9 * NS, "status": "missed"} for row in rows(100)]
    assert judged(rows() + outside).valid


def test_the_worst_actor_counts_and_one_that_does_not_tell_does_not():
    crowded = judged(rows(), health={"a": HEALTH, "b": HEALTH | {"run_share": 0.59}, "c": {"cpu_share": 0.1}})
    assert (named(crowded, "run_share").passed, named(crowded, "run_share").value) == (False, 0.59)
    assert named(crowded, "actor_cpu").value == 0.4
    assert crowded.valid


def test_an_answer_without_a_cached_count_had_no_hit_once_another_has_one():
    half = rows(100, prompt_tokens=1000, cached_tokens=[800] * 50)
    errors = [
        named(judged(made), "prefix_hit_error").value
        for made in (half, rows(100, prompt_tokens=1000), rows(100, cached_tokens=0))
    ]
    assert errors == [pytest.approx(0.4), None, None]


@pytest.mark.parametrize(
    ("cached", "block_tokens", "error"),
    [
        *((485, 16, 0.0), (500, 16, 0.0), (480, 16, 0.005), (507, 16, 0.007), (384, 16, 0.101)),
        *((384, 128, 0.0), (360, 128, 0.013)),
    ],
)
def test_a_prefix_cache_serves_whole_blocks_of_what_is_shared(cached, block_tokens, error):
    made = rows(100, **HALF_SHARED, cached_tokens=cached)
    verdict = judged(made, block_tokens=block_tokens)
    assert named(verdict, "prefix_hit_error").value == pytest.approx(error)
    assert verdict.reason == ("wrong_prefix_hits" if error > 0.01 else "")


def test_names_that_were_folded_are_noted():
    said = named(judged(rows(100, replica_id=[OTHER_WORD] * 7)), "folded_names")
    assert (said.value, said.passed, said.voids) == (7.0, False, False)
    assert "folded_names" not in {check.name for check in judged(rows(100)).checks}


def test_failures_are_noted_as_not_achieved_but_the_backlog_is_not():
    assert named(judged(rows(status=["timeout"] * 10)), "achieved").passed is False
    assert named(judged(rows(status=["pending"] * 100)), "achieved").value == 1.0


def test_little_compares_with_an_independent_count():
    assert named(judged(rows(), in_flight_mean=IN_FLIGHT), "little").value == pytest.approx(0, abs=3e-3)
    assert named(judged(rows(), in_flight_mean=IN_FLIGHT * 1.04), "little").passed is True
    assert named(judged(rows(), in_flight_mean=IN_FLIGHT * 1.06), "little").passed is False


def test_a_growing_queue_is_noted_as_unstable_and_does_not_void():
    rng = np.random.default_rng(2)
    growing = [100 * i * MS + int(rng.integers(0, 500 * MS)) for i in range(450)]
    verdict = judged(rows(end_offset_ns=growing, last_token_offset_ns=growing))
    assert named(verdict, "backlog_slope_t").passed is False
    assert verdict.valid


def test_a_growing_wait_is_noted_also_while_the_number_in_the_system_stands_still():
    rng = np.random.default_rng(5)
    waits = [60 * i * MS + int(rng.integers(0, 900 * MS)) for i in range(450)]
    before = [row | {"due_ns": row["due_ns"] - 45 * NS} for row in rows(end_offset_ns=40 * NS)]

    def backlog(**more):
        made = before + rows(end_offset_ns=40 * NS, **more)
        return named(judged(made), "backlog_slope_t").passed

    assert (backlog(), backlog(first_token_offset_ns=waits)) == (None, False)


def closed_loop(concurrency, count, seed=3):
    """Rows of a closed loop of 1 to 3 s each: whichever ends is followed at once; the first fill it."""
    rng = np.random.default_rng(seed)
    free = [0] * concurrency
    made = []
    for took_ns in map(int, rng.uniform(1, 3, count) * NS):
        at_ns = heapq.heappop(free)
        heapq.heappush(free, at_ns + took_ns)
        made.append({"due_ns": at_ns, "end_offset_ns": took_ns, "last_token_offset_ns": took_ns})
    begin_ns, last_ns = made[concurrency]["due_ns"], made[-1]["due_ns"]
    end_ns = last_ns + 1
    window = Window(0, "window", 1.0, 1, 0, begin_ns, end_ns, end_ns, concurrency=concurrency)
    return table([rows(1)[0] | row for row in made]), window


def test_a_closed_loop_of_enough_requests_is_proved_unless_it_lost_some_or_an_actor():
    made, window = closed_loop(8, 320)
    verdict = judge_window(made, window, SLO, WindowEvidence(health={"a": HEALTH}))
    assert verdict.valid
    assert named(verdict, "requests_per_concurrency").value == 40
    told = {name: named(verdict, name).passed for name in ("concurrency_error", "steady_window")}
    assert told == {"concurrency_error": True, "steady_window": True}
    assert named(verdict, "actor_cpu").value == 0.4
    assert "backlog_slope_t" not in {check.name for check in verdict.checks}
    fewer = judge_window(made, replace(window, concurrency=10), SLO)
    assert named(verdict, "concurrency_error").value < 0.05
    assert named(fewer, "concurrency_error").value == pytest.approx(0.2, abs=0.04)
    lost = judge_window(made, window, SLO, WindowEvidence(lost_actors=["c1"]))
    assert (lost.valid, lost.reason) == (False, "actor_lost")


def test_a_short_closed_loop_is_noted_and_not_void():
    made, window = closed_loop(8, 40)
    verdict = judge_window(made, window, SLO)
    noted = {check.name for check in verdict.checks if check.passed is False}
    assert noted >= {"requests_per_concurrency", "steady_window"}
    assert verdict.valid


def test_the_trend_test_allows_for_autocorrelation():
    rng = np.random.default_rng(4)
    alarms = []
    for _ in range(400):
        walk = np.zeros(45)
        for i in range(1, 45):
            walk[i] = 0.7 * walk[i - 1] + rng.normal()
        alarms.append(abs(slope_t(walk)) > 3)
    assert np.mean(alarms) < 0.06
    assert slope_t(np.arange(45.0)) == math.inf
    assert abs(slope_t(np.arange(45.0) + rng.normal(size=45))) > 20
    assert slope_t(np.ones(45)) is None
    assert slope_t(np.arange(9.0)) is None


@pytest.mark.parametrize(("scale", "bound_ms"), [(1, 10.0), (5, 2.0), (10, 1.0), (20, 1.0)])
def test_a_fast_clock_leaves_less_real_time_to_be_late(scale, bound_ms):
    made = rows(time_scale=float(scale), send_offset_ns=round(1.5 * scale * MS))
    verdict = judged(made)
    lag = named(verdict, "send_lag_p99")
    assert (lag.value, lag.bound) == (1.5, bound_ms)
    assert verdict.reason == ("" if bound_ms > 1.5 else "client_limited")
    assert named(verdict, "path_p90").bound == 100


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_a_slower_clock_is_a_remedy_only_where_it_was_fast(scale):
    verdict = judged(rows(time_scale=scale, engine_late_steps=[50] * 5))
    run = judge_run([verdict] * 3, 2)
    assert (verdict.reason, run.reason) == ("engine_late", "engine_late")
    assert ("engine.time_scale" in verdict.remedy, "engine.time_scale" in run.remedy) == (scale > 1,) * 2


def test_every_reason_is_that_of_a_rule_or_of_a_run():
    reasons = {rule.reason for rule in RULES if rule.reason}
    assert reasons | {"too_few_windows"} == set(REASONS)
    assert len({rule.name for rule in RULES}) == len(RULES)
    for reason in REASONS.values():
        assert reason.cause.endswith(".") and reason.remedy.endswith(".") and "\n" not in reason.remedy


def void(reason):
    return Verdict(False, reason, (Check("c", False, 1.0, 0.0, "", reason),))


VALID = Verdict(True, "", ())


@pytest.mark.parametrize(
    ("windows", "min_windows", "reason"),
    [
        ([VALID] * 6, 6, ""),
        ([VALID] * 6 + [void("engine_late")], 6, ""),
        ([VALID] * 5 + [void("engine_late"), void("actor_lost")], 6, "engine_late"),
        ([VALID] * 5, 6, "too_few_windows"),
        ([VALID], 1, "too_few_windows"),
        ([], 1, "too_few_windows"),
    ],
)
def test_a_run_needs_enough_valid_windows(windows, min_windows, reason):
    verdict = judge_run(windows, min_windows)
    assert (verdict.valid, verdict.reason) == (not reason, reason)
    assert verdict.remedy == (REASONS[reason].remedy if reason else "")


@pytest.mark.parametrize(("scale", "bound_ms"), [(1.0, 400.0), (2.0, 200.0), (4.0, 100.0), (10.0, 100.0)])
def test_the_way_is_judged_in_real_time_whatever_the_engine_took(scale, bound_ms):
    """An engine of 3 s and a way of `way_ms`; both on the run's clock."""
    slo = Slo("s", ttft_p90_ms=4000.0, tpot_p90_ms=50.0)
    for way_ms, reason in ((bound_ms - 1, ""), (bound_ms + 1, "path_slow")):
        engine_ns = 3000 * MS
        made = rows(
            time_scale=scale,
            engine_first_token_ns=engine_ns,
            first_token_offset_ns=engine_ns + round(way_ms * scale * MS),
        )
        verdict = judge_window(table(made), WINDOW, slo)
        assert (named(verdict, "path_p90").bound, verdict.reason) == (bound_ms, reason)


def test_a_replica_that_stands_still_voids_a_long_window_too():
    """Ten seconds of 240 at an even rate: 4 % of the answers come late, and no p90 moves."""
    window = Window(0, "window", 2.0, 1, 0, 0, 240 * NS, 240 * NS)
    made = []
    for i in range(480):
        due_s = i / 2
        way_s = max(0.0, 110 - due_s) if due_s >= 100 else 0.0
        first = round((0.05 + way_s) * NS)
        made.append(
            rows(1)[0]
            | {"due_ns": round(due_s * NS), "engine_first_token_ns": 49 * MS, "first_token_offset_ns": first}
        )
    verdict = judge_window(table(made), window, Slo("s", ttft_p90_ms=2000.0, tpot_p90_ms=50.0))
    assert named(verdict, "path_p90").passed
    assert named(verdict, "path_over").value == pytest.approx(17 / 480)
    assert (verdict.valid, verdict.reason) == (False, "path_slow")


def way(status, error="", client=1, count=5, from_s=0):
    """Requests of one load actor, one each second."""
    return [
        {"client_id": client, "due_ns": (from_s + k) * NS, "status": status, "error": error}
        for k in range(count)
    ]


UNREACHED = "[Errno 113] No route to host"


@pytest.mark.parametrize(
    ("requests", "cut"),
    [
        (way("conn_error", UNREACHED) + way("ok", client=0), [1]),
        (way("conn_error", UNREACHED) + way("ok", client=0, from_s=9), []),  # nobody was served meanwhile
        (way("conn_error", UNREACHED) + way("conn_error", UNREACHED, client=0), []),  # the server's network
        (way("conn_error", "Connection refused") + way("ok", client=0), []),  # something answers there
        (way("conn_error", UNREACHED, count=2) + way("ok", client=0), []),
        (way("conn_error", UNREACHED) + way("ok", count=4) + way("ok", client=0), []),  # it was served, too
        (way("ok", count=9) + way("conn_error", UNREACHED, from_s=9) + way("ok", client=0, count=20), [1]),
    ],
)
def test_a_load_actor_without_a_way_while_others_are_served_has_no_network(requests, cut):
    assert cut_off(pa.Table.from_pylist(requests, schema=records.PROGRESS)) == cut
