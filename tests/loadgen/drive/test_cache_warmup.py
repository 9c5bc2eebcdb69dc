"""loadgen/drive/prepared_load.py: caches are warm before a window counts, and no longer warmed than that."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from analysis.rows import metrics, records
from conf import Experiment, load
from loadgen.drive import prepared_load
from loadgen.drive.driver import Driver
from loadgen.drive.loss_recovery import LossRecovery, TargetLost
from loadgen.drive.prepared_load import UNREPORTED, load_prepared, warm_up
from loadgen.fleet.rows import plan_columns
from loadgen.fleet.target import LostActor, Observation
from loadgen.search.window_plan import Start, WindowPlan
from loadgen.traffic.prefix_sharing import with_mean_lengths
from loadgen.traffic.schedule import NS, ArrivalSchedule, Planned, planned
from tests.support.virtual.virtual_drivers import plan

CHATS = load(["workload=character", "workload.conversations.characters=100"])
CHATS = replace(CHATS, workload=with_mean_lengths(CHATS.workload))
STEP_QPS = 0.5 * 6.0 * 20 / 56
"""Of the climb: the users who come with it in 20 s ask for half of the 6 cold prompts a second in 56 s."""


class Cache:
    """A target that remembers every prompt; it may not tell what it had of them.

    It answers within a second, or what is texts of it comes `life_s` after the due time.
    """

    def __init__(self, tells: bool = True, fade_s: float = 0.0, life_s: float = 0.0) -> None:
        self.now, self.plans, self.known = 0, list[Planned](), dict[Any, int]()
        self.tells, self.fade_s, self.life_s = tells, fade_s, life_s
        self.lost: list[LostActor] = []

    def now_ns(self) -> int:
        return self.now

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        self.plans += planned(schedule) if schedule is not None else []
        self.now = max(self.now, until_ns)
        due = [plan for plan in self.plans if plan.due_ns + self.life_s * NS <= self.now]
        self.plans = self.plans[len(due) :]
        count, end_ns = len(due), max(900_000_000, int(self.life_s * NS))
        rows: dict[str, Any] = plan_columns(due) | {
            "client_id": np.zeros(count, np.int16),
            "status": ["ok"] * count,
            "prompt_tokens": [plan.input_tokens for plan in due],
            "cached_tokens": [self.cached(plan) for plan in due],
            "output_tokens": [plan.output_tokens for plan in due],
            "send_offset_ns": [0] * count,
            "first_token_offset_ns": [50_000_000] * count,
            "last_token_offset_ns": [end_ns] * count,
            "end_offset_ns": [end_ns] * count,
        }
        ended = pa.table(records.empty(records.PROGRESS, count) | rows, schema=records.PROGRESS)
        return Observation(ended, records.PROGRESS.empty_table(), lost_actors=self.lost)

    def retract(self) -> None:
        self.plans = []

    def heal(self) -> bool:
        return False

    def cached(self, plan: Planned) -> int | None:
        ends = {"all": plan.shared_tokens}
        if plan.character >= 0:
            persona = plan.character_tokens + plan.persona_tokens
            ends |= {plan.character: plan.character_tokens, (plan.session,): persona}
            ends[plan.session, plan.history_cut] = plan.input_tokens
        cached = max(min(end, self.known.get(name, 0)) for name, end in ends.items())
        for name, end in ends.items():
            self.known[name] = max(self.known.get(name, 0), end)
        if self.fade_s:
            cached = round(cached * max(0.0, 1 - plan.due_ns / NS / self.fade_s))
        return cached if self.tells else None


def driver(target: Cache | None = None, experiment: Experiment = CHATS) -> tuple[Driver, list[str]]:
    """A driver, and what it says of its warm-up so far."""
    texts: list[str] = []

    def emit(kind: str, /, **facts: Any) -> None:
        texts.append(facts["text"]) if kind == "fill" else None

    return Driver(target or Cache(), plan(experiment, Start(6.0), warmup_requests=20), emit), texts


def window_plan(index: int, rate_qps: float, kind: Any = "window") -> WindowPlan:
    return WindowPlan(index, kind, rate_qps, 15.0, 45.0, False, "a test")


def window_hit(drive: Driver, index: int) -> Any:
    rows = drive.windows.requests(index)
    return metrics.prefix_hit(rows.filter(pa.array(metrics.word_in(rows, "phase", "window"))))


def test_users_are_in_the_caches_before_the_first_window() -> None:
    drive, texts = driver()
    warm_up(drive)
    spent_s = drive.elapsed_s()
    load_prepared(drive, window_plan(0, 20.0))
    assert window_hit(drive, 0) > 0.94
    assert drive.elapsed_s() - spent_s == pytest.approx(61.2, abs=0.5)  # the fill is not charged
    assert drive.feed.target.now_ns() > 200 * NS
    rates = [float(line.split(" at ")[1].split(" QPS")[0]) for line in texts[:-1]]
    assert rates[0] == 3.0 and rates[-2:] == [20.0, 20.0]
    assert np.max(np.diff(rates)) == pytest.approx(STEP_QPS, abs=2e-3)
    assert "caches are warm" in texts[-1]


def test_a_lower_rate_has_no_new_users_and_a_higher_one_has() -> None:
    drive, texts = driver()
    warm_up(drive)
    for index, (rate_qps, fills) in enumerate([(10.0, True), (9.0, False), (10.05, False), (11.0, True)]):
        texts.clear()
        load_prepared(drive, window_plan(index, rate_qps))
        assert bool(texts) is fills
        assert window_hit(drive, index) > 0.9


def test_after_an_overload_the_caches_are_warmed_up_again_from_half_the_rate() -> None:
    drive, texts = driver()
    load_prepared(drive, window_plan(0, 10.0))
    load_prepared(drive, window_plan(1, 9.0))
    texts.clear()
    load_prepared(drive, replace(window_plan(2, 8.0), settle_before=True))
    rates = [float(line.split(" at ")[1].split(" QPS")[0]) for line in texts[:-1]]
    assert rates[0] == pytest.approx(4.0 + STEP_QPS, abs=2e-3) and rates[-2:] == [8.0, 8.0]
    texts.clear()
    load_prepared(drive, window_plan(3, 7.5))
    assert not texts, "all of its users have been there again"


def test_answers_that_take_longer_than_a_piece_do_not_end_the_warm_up() -> None:
    """As in an overload: of what is due in a piece nothing has ended at its end."""
    drive, texts = driver(Cache(life_s=50.0))
    load_prepared(drive, window_plan(0, 6.0))
    assert "caches are warm" in texts[-1] and drive.feed.target.now_ns() > 200 * NS
    assert float(texts[-2].split(": ")[1].split("%")[0]) > 93


def test_pieces_are_settled_by_their_hits_and_their_time() -> None:
    def is_settled(*pieces: tuple[float, float]) -> bool:
        return prepared_load.settled([prepared_load.WarmupPiece(*each) for each in pieces])

    assert is_settled((0.5, 900.0), (0.93, 1000.0), (0.935, 950.0))
    assert is_settled((0.93, 900.0), (0.93, 2000.0)), "a queue that grows is no reason to go on"
    assert not is_settled((0.93, 1000.0))
    assert not is_settled((0.90, 1000.0), (0.93, 1000.0))
    assert not is_settled((0.93, 1000.0), (0.93, 850.0))


def test_a_service_that_came_back_is_warmed_up_again() -> None:
    drive, texts = driver()
    drive.loss.repair = lambda: None
    load_prepared(drive, window_plan(0, 8.0))
    drive.recover(TargetLost("gone"))
    texts.clear()
    load_prepared(drive, window_plan(1, 8.0))
    assert "caches are warm" in texts[-1]


def test_a_warm_up_that_a_load_actor_s_loss_ended_counts_as_none() -> None:
    target = Cache()
    drive, _ = driver(target)
    target.lost = [LostActor(0, 0, 2, "killed")]
    load_prepared(drive, window_plan(0, 8.0))
    assert drive.warmed_qps == 0.0


def test_a_warm_up_that_the_service_s_loss_ended_costs_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> None:
        raise TargetLost("gone")

    drive, _ = driver()
    warm_up(drive)
    spent_s = drive.elapsed_s()
    monkeypatch.setattr(LossRecovery, "refuse_dead", dies)
    with pytest.raises(TargetLost):
        load_prepared(drive, window_plan(0, 8.0))
    assert drive.elapsed_s() - spent_s < 1
    assert drive.feed.target.now_ns() > drive.feed.free_ns - 2 * NS > 20 * NS


def test_the_load_that_runs_out_is_of_the_same_users() -> None:
    saved: list[ArrivalSchedule] = []
    drive, _ = driver()
    drive.feed.plan_saved = saved.append
    load_prepared(drive, window_plan(0, 20.0))
    drive.drain(run_out=True)
    *before, last = saved
    assert last.session is not None and len(last) > 10
    assert np.isin(last.session, np.concatenate([plan.session for plan in before])).mean() > 0.8


def test_ramp_steps_are_not_warmed_up() -> None:
    drive, texts = driver()
    load_prepared(drive, window_plan(0, 2.0, "ramp"))
    assert texts == []


def test_the_ledger_knows_the_plan_of_every_piece() -> None:
    saved: list[int] = []
    drive, _ = driver()
    drive.feed.plan_saved = lambda schedule: saved.extend(schedule.seq.tolist())
    load_prepared(drive, window_plan(0, 8.0))
    assert saved == list(range(len(saved))) and len(saved) > 500
    assert drive.windows.ledger.planned(0, 0, drive.feed.free_ns) == len(saved)
    assert drive.windows.outcomes[0].verdict.valid


def test_who_tells_no_hits_is_not_waited_for() -> None:
    drive, texts = driver(Cache(tells=False))
    warm_up(drive)
    load_prepared(drive, window_plan(0, 10.0))
    assert texts == [UNREPORTED] and drive.feed.target.now_ns() < 90 * NS


def test_what_never_settles_is_measured_as_it_is_and_told() -> None:
    drive, texts = driver(Cache(fade_s=600))
    warm_up(drive)
    load_prepared(drive, window_plan(0, 7.5))
    assert "still change" in texts[-1]
    assert drive.feed.target.now_ns() < (prepared_load.LONGEST_S + 250) * NS


def test_prompts_of_one_beginning_are_warmed_up_unless_the_service_was() -> None:
    drive, texts = driver(Cache(), load(["workload.prefix_hit=.5"]))
    load_prepared(drive, window_plan(0, 5.0))
    assert "caches are warm after 4" in texts[-1]
    drive, texts = driver(Cache(), load(["workload.prefix_hit=.5"]))
    warm_up(drive)
    load_prepared(drive, window_plan(0, 5.0))
    assert texts == [] and window_hit(drive, 0) == pytest.approx(0.5, abs=0.01)


def test_prompts_without_reuse_need_no_warm_up() -> None:
    for tells in (True, False):
        drive, texts = driver(Cache(tells), load())
        warm_up(drive)
        load_prepared(drive, window_plan(0, 5.0))
        assert texts == []


@pytest.mark.parametrize(
    ("wanted", "offered", "cold", "first"),
    [
        (20.0, 0.0, 8.0, 4.0),
        (20.0, 0.0, None, 2.5),
        (20.0, 10.0, 8.0, 12.5),
        (20.0, 18.0, 8.0, None),
        (3.0, 0.0, 8.0, None),
    ],
)
def test_the_ramp_begins_at_the_last_rate_or_at_what_a_cold_service_can_do(
    wanted: float, offered: float, cold: float | None, first: float | None
) -> None:
    rates = prepared_load.ramp_rates(wanted, offered, cold)
    assert (rates[0] if rates else None) == first
    assert all(rate < wanted for rate in rates)


def test_new_users_of_the_ramp_ask_for_half_of_what_a_cold_service_can_do() -> None:
    rates = [10.0, *prepared_load.ramp_rates(20.0, 10.0, 8.0, 50.0)]
    newcomers_per_s = np.diff(rates) * 50.0 / prepared_load.CACHE_PIECE_S
    assert newcomers_per_s == pytest.approx(np.full(len(rates) - 1, 4.0))
    assert prepared_load.ramp_rates(20.0, 0.0, 8.0, 50.0)[0] == 4.0
    assert prepared_load.ramp_rates(20.0, 19.0, 8.0, 50.0) == []
