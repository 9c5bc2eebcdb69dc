"""loadgen/cli: words, the plan, what is deployed, processes that predict, the simulated clock."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import Process
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from analysis import load_run
from analysis.capacity.rules import Verdict
from analysis.results.summary import EXIT_VOID
from analysis.results.verdicts import RunVerdict
from conf import load
from loadgen.__main__ import main
from loadgen.cli import machine, measuring
from loadgen.cli.deployment import service_plan
from loadgen.cli.output import PlannedRun, duration, minutes, plan_text, plan_tree
from loadgen.cli.prediction import processes
from loadgen.cli.words import COMMON_VOCAB, spelled
from loadgen.drive import programs
from loadgen.run.jobs import Job, Site
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Stop, WindowPlan
from tests.support.runs.golden import GOLDEN

URL = "http://10.0.0.7:8000/team/v1"
COMMANDS = yaml.safe_load((Path(__file__).parents[2] / "data" / "commands.yaml").read_text())


def test_a_url_alone_is_an_external_endpoint_of_which_nothing_is_assumed() -> None:
    experiment = load(spelled([URL]))
    assert experiment.engine.kind == "external" and experiment.target.bases == ["http://10.0.0.7:8000/team"]
    unnamed = (experiment.model, experiment.hardware, experiment.layout, experiment.routing)
    assert {spec.name for spec in unnamed} == {"unknown"}
    assert (experiment.cluster.nodes, experiment.model.vocab) == (1, COMMON_VOCAB)


def test_several_urls_ipv6_and_the_users_own_words_stand() -> None:
    urls = ["http://[::1]:8000", "https://gateway.example/a"]
    experiment = load(spelled([urls[0], "cluster.nodes=2", "model.vocab=500", urls[1]]))
    assert experiment.target.urls == urls
    assert (experiment.cluster.nodes, experiment.model.vocab) == (2, 500)


def test_a_model_is_a_file_of_ours_or_the_name_in_the_requests() -> None:
    other = load(spelled([URL, "model=my-org/My-Model"])).model
    assert (other.name, other.vocab) == (other.served_name, COMMON_VOCAB) == ("my-org/My-Model", COMMON_VOCAB)
    ours = load(spelled([URL, "model=llama31_405b_fp8"])).model
    assert ours.name == "Llama-3.1-405B-Instruct-FP8" and ours.vocab == 128256
    assert spelled(["model=nothing_of_ours"]) == ["model=nothing_of_ours"]  # without a URL as before


@pytest.mark.parametrize(("word", "full"), COMMANDS["spelled"].items())
def test_short_words_stand_for_full_keys_and_times_for_seconds(word: str, full: str) -> None:
    assert spelled([word]) == [full]


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


@pytest.mark.parametrize(("words", "note"), COMMANDS["noted"].items())
def test_every_verb_has_its_plan_as_json(words: str, note: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert any(line.startswith(note) for line in printed(capsys, *words.split())["notes"])


def test_a_closed_loop_and_a_virtual_clock_have_no_time() -> None:
    closed = PlannedRun(load(["concurrency=4", "requests=100"]), None)
    assert (plan_tree(closed)["load_s"], plan_tree(closed)["longest_s"]) == (None, None)
    assert "as long as that takes" in plan_text(closed)
    virtual = PlannedRun(load([]), 0)
    assert plan_tree(virtual)["longest_s"] == 0 and plan_text(virtual).endswith("no load: a virtual clock")


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
    assert duration(closed) == "100 requests in a closed loop of 4: as long as that takes"
    assert [minutes(s) for s in (34.2, 95, 511, 7400)] == ["34 s", "1 min 35 s", "8 min 31 s", "2 h 3 min"]


@pytest.mark.parametrize(("window_s", "transition_s"), [(20.0, 5.0), (60.0, 15.0), (600.0, 15.0)])
def test_a_short_probe_needs_a_short_transition(window_s: float, transition_s: float) -> None:
    assert programs.transition_s(window_s) == transition_s
    assert programs.load_seconds(load(["rate_qps=5", f"duration_s={window_s}"])) == window_s + transition_s


def test_the_example_prompt_of_a_chat_has_its_means_and_what_is_cut() -> None:
    shown = plan_text(PlannedRun(load(["workload=character"]), 1.0))
    assert "#   character    1200 tokens\n" in shown and " of 15300, in 180 messages\n" in shown


SIMULATED = ["engine=simulated", "cluster=laptop_4n", "layout.quick_reduce=none"]


@pytest.mark.parametrize(("words", "placed"), COMMANDS["placed"].items())
def test_each_replica_takes_the_gpus_of_its_layout_on_one_node(
    words: str, placed: tuple[int, int, list[float]]
) -> None:
    replicas, prefill_replicas, gpus = placed
    plan = service_plan(load([*SIMULATED, *words.split()]))
    assert (plan.replicas, plan.prefill_replicas) == (replicas, prefill_replicas)
    decode = plan.build()._bound_deployment
    bound = [init_arg for init_arg in decode.init_args if hasattr(init_arg, "_bound_deployment")]
    prefill = [init_arg._bound_deployment for init_arg in bound]
    counts = [deployment.num_replicas for deployment in (decode, *prefill)]
    assert counts == [replicas, prefill_replicas][: len(gpus)]
    for deployment, share in zip((decode, *prefill), gpus, strict=True):
        config = deployment._replica_config
        assert config.placement_group_bundles == [{"GPU": share, "CPU": 0.1}]
        assert config.placement_group_strategy == "STRICT_PACK"


def test_ranks_of_one_vllm_engine_are_replicas_of_serve() -> None:
    plan = service_plan(load(["engine=vllm", "cluster=mi325x_4n", "layout=dp8_attention_ep8"]))
    assert plan.replicas == 4 * 8 and plan.built_in_cluster


LOCK = threading.Lock()


def lock_is_free(_: int) -> bool:
    return LOCK.acquire(timeout=0.1)


@pytest.mark.slow
def test_workers_do_not_inherit_the_locks_of_threads() -> None:
    with LOCK, processes() as parallel_map:
        assert list(parallel_map(lock_is_free, [1])) == [True]


@pytest.mark.slow
def test_an_error_ends_the_workers_and_no_other_process() -> None:
    other = Process(target=time.sleep, args=(60,))
    other.start()
    try:
        began_s = time.monotonic()
        with pytest.raises(ZeroDivisionError), processes() as parallel_map:
            parallel_map(time.sleep, [60.0])
            raise ZeroDivisionError
        assert time.monotonic() - began_s < 50, "the worker would sleep for a minute"
        assert other.is_alive()
    finally:
        other.kill()
        other.join()


PLAIN = load([])
VALID, VOID = Verdict(True, "", ()), Verdict(False, "path_slow", ())
LATE = Verdict(False, "engine_late", ())


def unused(*_: Any) -> Any:
    raise AssertionError("a played sweep starts nothing")


SITE = Site(unused, unused)


@pytest.mark.parametrize(("words", "is_free"), COMMANDS["free"].items())
def test_the_clock_is_free_where_one_search_runs_on_a_simulated_engine(words: str, is_free: bool) -> None:
    assert machine.is_free(load(words.split()), words.split()) == is_free


@pytest.mark.parametrize(("cores", "nodes", "scale"), [(4, 1, 3.0), (2, 1, 2.5), (2, 4, 1.0), (16, 4, 3.0)])
def test_the_clock_follows_the_load_and_the_cores(
    cores: int, nodes: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)
    experiment = PLAIN if nodes == 1 else load(["cluster=laptop_4n"])
    assert machine.fast(experiment).time_scale == scale


@pytest.mark.parametrize(("free", "scale"), [(1.6, 3.0), (0.6, 1.0), (0.0, 1.0)])
def test_beside_busy_neighbours_the_clock_is_the_real_one(
    free: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "free_cores", lambda: free)
    fast = machine.with_clock(PLAIN, 3.0)
    assert machine.beside_neighbours(fast).time_scale == scale


def ended(scale: float, reason: str) -> RunVerdict:
    verdict = load_run(GOLDEN).verdict
    assert verdict
    experiment = replace(verdict.experiment, time_scale=scale)
    if not reason:
        return replace(verdict, experiment=experiment)
    return replace(
        verdict, experiment=experiment, valid=False, exit_code=EXIT_VOID, reason=f"{reason}: remedy"
    )


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """Plays sweeps that end with these reasons, and returns the scales at which they ran."""

    def play(out: Path, *reasons: str) -> list[float]:
        scales: list[float] = []

        class PlayedRun:
            def __init__(self, job: Job, folder: RunFolder, *_: Any) -> None:
                self._scale = job.experiment.time_scale
                folder.close()

            def measure(self) -> RunVerdict:
                scales.append(self._scale)
                return ended(self._scale, reasons[len(scales) - 1])

        monkeypatch.setattr(measuring, "RunLifecycle", PlayedRun)
        experiment = load(["engine.time_scale=3", f"out={out}", "run=x"])
        measuring.run(machine.SearchOnFastClock(experiment), SITE, lambda *_, **__: None)
        return scales

    return play


@pytest.mark.parametrize(
    ("reasons", "scales"),
    [
        ([""], [3.0]),
        (["client_limited", ""], [3.0, 2.5]),
        (["engine_late", "client_limited", "client_limited", ""], [3.0, 2.5, 2.0, 1.0]),
        (["path_slow"], [3.0]),
    ],
)
def test_a_sweep_that_was_late_begins_again_on_a_slower_clock_in_the_same_folder(
    reasons: list[str], scales: list[float], played: Callable[..., list[float]], tmp_path: Path
) -> None:
    assert played(tmp_path, *reasons) == scales
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def stops(scale: float, *judged: Verdict) -> bool:
    """Whether the search on such a clock ends after these windows."""
    windows = SimpleNamespace(outcomes=[SimpleNamespace(verdict=verdict) for verdict in judged])
    driver: Any = SimpleNamespace(plan=SimpleNamespace(time_scale=scale), windows=windows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "focus", lambda _: WindowPlan(0, "window", 1.0, 0.0, 1.0, False, ""))
        return isinstance(machine.SearchOnFastClock(PLAIN).next_step(driver), Stop)


def test_a_late_search_on_a_fast_clock_loads_no_further_window() -> None:
    assert stops(3.0, LATE) and stops(3.0, VALID, LATE) and not stops(1.0, LATE)
    assert not (stops(3.0) or stops(3.0, VALID, VOID) or stops(3.0, VALID, VALID, LATE))


def test_a_dry_run_counts_real_seconds_too(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 4)
    assert main(["sweep", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert "at most 2 min 46 s if answers are late (simulated clock x3)" in output
    assert "engine.time_scale" not in output
    assert main(["sweep", "--dry-run", "engine.time_scale=1"]) == 0
    assert "simulated clock" not in capsys.readouterr().out
