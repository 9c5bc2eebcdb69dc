"""loadgen/studies/engine_check.py: which runs `verify` replays, as what, and when engines agree."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.results import engine_agreement, summary
from analysis.results.asked import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.types.run_verdict import EngineCheck
from conf import ConfigError, Experiment, load
from conf.compose import dump
from conf.specs.experiment import EmulatedEngine, SimulatedEngine
from loadgen.__main__ import main
from loadgen.cli.engine_model import simulate
from loadgen.drive import fixed_rate
from loadgen.drive.driver import Driver
from loadgen.search.window_plan import Start
from loadgen.studies import engine_check
from loadgen.studies.engine_check import EngineReplay
from tests.support.runs.verdict_trees import text_of
from tests.support.virtual.virtual_drivers import plan, silent, virtual

CONCLUDED = {"exit_code": 0, "valid": True, "reason": "", "asked": to_tree(describe(load()))}
QPS = {"value": 2.7, "low": 2.4, "high": 3.0, "certified": 2.5}
ENDED = CONCLUDED | {"capacity": {"qps_per_node": QPS, "binding": "ttft"}}
Folder = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Writes what is read of a run."""

    def write(*words: str, ended: Any = ENDED) -> Path:
        (tmp_path / "config.yaml").write_text(dump(load(words)))
        (tmp_path / "manifest.json").write_text(json.dumps({"verb": "sweep"}))
        if ended is not None:
            (tmp_path / "sweep.json").write_text(json.dumps(ended))
        return tmp_path

    return write


def test_a_runs_own_limits_become_vllms_arguments(folder: Folder) -> None:
    run = folder(
        "engine.max_num_seqs=256", "engine.num_gpu_blocks=5000", "engine.step_noise_cv=0.1", "seed=3"
    )
    replay = EngineReplay.asked(run, ["duration_s=60"], "0.32.0")
    assert replay.emulated.engine == EmulatedEngine(
        vllm_version="0.32.0",
        args={
            "max_num_batched_tokens": 8192,
            "max_num_seqs": 256,
            "max_model_len": 32768,
            "block_size": 16,
            "gpu_memory_utilization": 0.9,
            "enable_prefix_caching": True,
            "async_scheduling": True,
            "kv_cache_dtype": "fp8",
            # vLLM keeps one block for itself.
            "num_gpu_blocks_override": 5001,
        },
    )
    assert replace(replay.emulated, engine=replay.simulated.engine) == replay.simulated
    assert (replay.simulated.rate_qps, replay.simulated.duration_s, replay.simulated.seed) == (2.5, 60, 3)
    assert isinstance(replay.simulated.engine, SimulatedEngine)
    assert replay.simulated.engine.step_noise_cv == 0


@pytest.mark.parametrize(("connector", "caches"), [("moriio", False), ("nixl", True)])
def test_a_split_layout_is_replayed_with_what_its_connector_allows(
    connector: str, caches: bool, folder: Folder
) -> None:
    run = folder("layout=1p1d_tp4_ep4", f"layout.connector={connector}")
    replay = EngineReplay.asked(run, [], "0.32.0")
    assert isinstance(replay.emulated.engine, EmulatedEngine)
    assert replay.emulated.engine.args["enable_prefix_caching"] is caches
    assert replay.emulated.layout == replay.simulated.layout


def test_two_minutes_of_a_new_run_folder_unless_told(folder: Folder) -> None:
    replay = EngineReplay.asked(folder("run=mine"), [], "")
    assert (replay.emulated.duration_s, replay.emulated.run) == (120, None)


REFUSED = {
    "a run without a capacity": ([], None, [], "found a capacity"),
    "a void run": ([], ENDED | {"valid": False, "reason": "late"}, [], r"void \(late\)"),
    "another engine": (
        ["engine=external", "target.urls=[http://127.0.0.1:1]"],
        ENDED,
        [],
        "engine=external",
    ),
    "a queue limit": (["engine.max_num_queued_reqs=9"], ENDED, [], "max_num_queued_reqs"),
    "latent attention": (["model=deepseek_v32_fp8"], ENDED, [], "latent attention"),
    "synchronous scheduling": (["engine.async_scheduling=false"], ENDED, [], "async_scheduling=true"),
    "another question": ([], ENDED, ["rate_qps=9"], "rate_qps=9 is not among"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_cannot_be_replayed_is_refused(name: str, folder: Folder) -> None:
    words, ended, more, why = REFUSED[name]
    with pytest.raises(ConfigError, match=why):
        EngineReplay.asked(folder(*words, ended=ended), more, "")


def test_a_study_is_verified_run_by_run(folder: Folder) -> None:
    run = folder()
    (run / "study.json").write_text("{}")
    with pytest.raises(ConfigError, match="verify one of its runs"):
        EngineReplay.asked(run, [], "")


def test_the_command_line_asks_for_one_folder(
    capsys: pytest.CaptureFixture[str], folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("loadgen.cli.config_check", "serve_apps.vllm_engine.prepared"):
        monkeypatch.setattr(f"{module}.installed_vllm", lambda: "0.32.0")
    assert main(["verify"]) == main(["verify", "a", "b"]) == main(["verify", "nowhere"]) == 2
    assert "verify takes one run folder" in capsys.readouterr().err
    assert main(["verify", str(folder()), "duration_s=60", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "kind: vllm_emulated" in said and "vllm_version: 0.32.0" in said


def probed(replay: EngineReplay, served_by: Experiment) -> dict[str, Any]:
    """The conclusion where `served_by` stands for the vLLM that is loaded, whose front end has no latency."""
    times = served_by.model.step_time
    none = replace(times.front_end_latency_ms, value=0.0, low=None, high=None)
    model = replace(served_by.model, step_time=replace(times, front_end_latency_ms=none))
    asked, target = replay.emulated, virtual(replace(served_by, model=model))
    driver = Driver(target, plan(asked, Start(5.0), warmup_requests=8), silent)
    fixed_rate.asked(driver, asked)
    return to_tree(engine_check.concluded(replay, driver, simulate))


@pytest.mark.parametrize("hit", [0.0, 0.5])
def test_an_engine_agrees_with_itself_to_the_last_digit(folder: Folder, hit: float) -> None:
    replay = EngineReplay.asked(folder(f"workload.prefix_hit={hit}"), ["duration_s=60"], "0.32.0")
    tree = probed(replay, replay.simulated)
    assert (tree["exit_code"], tree["reason"]) == (summary.EXIT_OK, "")
    verify = from_tree(EngineCheck, tree["verify"], "the verdict")
    assert all(one.agrees and abs(one.difference_ms or 0.0) < 1e-3 for one in verify.comparisons)
    text = text_of(tree)
    assert "vLLM 0.32.0 itself on GPUs that do not exist" in text
    assert tree["asked"]["constants"] in text
    assert "through vLLM: the simulated engine agrees" in text and text.count(": ok") == 2


def test_an_engine_that_is_slower_by_a_tenth_is_off(folder: Folder) -> None:
    replay = EngineReplay.asked(folder(), ["duration_s=60"], "0.32.0")
    times = replay.simulated.model.step_time
    scale = replace(times.deployment_scale, value=1.1 * times.deployment_scale.value, low=None, high=None)
    slower = replace(replay.simulated.model, step_time=replace(times, deployment_scale=scale))
    tree = probed(replay, replace(replay.simulated, model=slower))
    assert tree["exit_code"] == summary.EXIT_SLO_MISSED
    assert "TPOT of vLLM" in tree["reason"] and ": off" in text_of(tree)
    assert text_of(tree).startswith("VALID")


def test_a_probe_that_missed_a_bound_agrees_all_the_same(folder: Folder) -> None:
    replay = EngineReplay.asked(folder("slo.tpot_p90_ms=20"), ["duration_s=60"], "0.32.0")
    tree = probed(replay, replay.simulated)
    assert tree["exit_code"] == summary.EXIT_OK and not tree["probe"]["limits"]["tpot"]["passed"]


def test_how_far_two_engines_may_be_apart() -> None:
    flat = np.full(100, 100.0)
    assert (
        engine_agreement.tpot(flat * 1.019, flat, 0.0).agrees
        and not engine_agreement.tpot(flat * 1.021, flat, 0.0).agrees
    )
    assert (
        engine_agreement.tpot(flat * 0.971, flat, 0.95).agrees
        and not engine_agreement.tpot(flat * 0.969, flat, 0.95).agrees
    )
    assert engine_agreement.ttft(flat + 29, flat).agrees and not engine_agreement.ttft(flat + 31, flat).agrees
    assert (
        engine_agreement.ttft(flat * 10.9, flat * 10).agrees
        and not engine_agreement.ttft(flat * 11.1, flat * 10).agrees
    )
    unknown = engine_agreement.ttft(np.array([]), flat)
    assert not unknown.agrees and "unknown" in engine_agreement.line(unknown)
