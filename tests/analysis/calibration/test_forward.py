"""`calibrate --forward` finds constants again in files of vllm bench forward that an engine model made."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from analysis import __main__ as root
from analysis.acts import _forward_s as by_model
from analysis.calibration.forward import ForwardWork
from conf import Experiment, load
from conf.constants import constants, replaced
from conf.io import bounded_yaml
from serve_apps.vllm_engine.rendering import CASES, fits
from tests.support.words.words import TABLES

STEP, REACHED = "model.step_time.", "hardware.efficiency."
SCALES = {STEP + "deployment_scale": 1.0, STEP + "layout_scale": 1.0, REACHED + "compute": 1.0}
TRUTH = {
    STEP + "layer_us": 115.0,
    STEP + "prefill_layer_us": 320.0,
    STEP + "gemm_prefill": 0.33,
    STEP + "gemm_decode": 0.2,
    REACHED + "kv_read": 0.49,
    REACHED + "attention": 0.25,
}
NOISE = 0.003
MACHINE = ["hardware=mi300x", "layout=dp1_tp8_ep8"]


def requests_of(case: str) -> list[dict[str, Any]]:
    """The requests of a word of --case, as the bench reads it."""
    result = []
    for item in case.partition("=")[2].split(","):
        match = re.fullmatch(r"(?:(\d+)\*)?(\d+)(?:@(\d+))?(c)?", item)
        assert match
        count, new, whole, chunked = match.groups()
        row = {
            "query_len": int(new),
            "kv_len": int(whole or new),
            "num_draft_tokens": 0,
            "chunked": bool(chunked),
        }
        result += [row] * int(count or 1)
    return result


def work_of(rows: Sequence[Mapping[str, Any]]) -> ForwardWork:
    pairs = [(row["query_len"], row["kv_len"] - row["query_len"]) for row in rows]
    decoding = tuple(context for new, context in pairs if new == 1 and context)
    return ForwardWork(decoding, tuple(pair for pair in pairs if not (pair[0] == 1 and pair[1])))


def made(path: Path, machine: Experiment, routing: str = "balanced", noise: float = NOISE) -> Path:
    """A file as the bench writes it, of an engine with these constants."""
    rng = np.random.default_rng(0)
    entries = []
    every = (case for row in bounded_yaml.read(CASES.read_text()).values() for case in row["cases"])
    for case in (case for case in every if fits(case, 32768, 8192, 2_000_000)):
        rows = requests_of(case)
        seconds = by_model(machine, work_of(rows)) * float(np.exp(noise * rng.standard_normal()))
        entry = {"case": case.partition("=")[0], "requests": rows, "median_us": seconds * 1e6}
        entries.append(entry | {"ranks": [{"routing": routing}]})
    path.write_text(json.dumps(entries))
    return path


def machine_of(values: Mapping[str, float], routing: str = "balanced") -> Experiment:
    even = {STEP + "expert_spread": 1.0, STEP + "expert_imbalance": 1.0} if routing == "balanced" else {}
    return replaced(load(MACHINE), {**SCALES, **even, **values})


def test_known_constants_are_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth, out = machine_of(TRUTH), tmp_path / "node.yaml"
    file = made(tmp_path / "times.json", truth)
    assert root.main(["calibrate", "--forward", str(file), *MACHINE, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    found = yaml.safe_load(out.read_text())["constants"]
    for path, value in TRUTH.items():
        assert found[path]["low"] <= value <= found[path]["high"], path
    for path in ("layer_us", "prefill_layer_us"):
        assert found[STEP + path]["value"] == pytest.approx(TRUTH[STEP + path], rel=0.02)
    assert found[REACHED + "kv_read"]["value"] == pytest.approx(TRUTH[REACHED + "kv_read"], rel=0.03)
    assert not {STEP + "step_ms", STEP + "front_end_ms", STEP + "expert_spread"} & set(found)
    assert "batches of Qwen3-235B" in printed and "logits, sampling and host are not in them" in printed
    calibrated = load([*MACHINE, f"engine.constants={out}"])
    assert constants(calibrated)[STEP + "deployment_scale"].low is None
    even = {STEP + "expert_spread": 1.0, STEP + "expert_imbalance": 1.0}
    # Batches that the design does not have, and that no single constant times.
    for batch in (ForwardWork((6000,) * 48, ((3000, 0),)), ForwardWork((2500,) * 96, ())):
        assert by_model(replaced(calibrated, even), batch) == pytest.approx(by_model(truth, batch), rel=0.01)


def test_real_routing_leaves_the_experts_to_the_fit(tmp_path: Path) -> None:
    out = tmp_path / "node.yaml"
    file = made(tmp_path / "times.json", machine_of({STEP + "expert_spread": 0.9}, "real"), "real")
    assert root.main(["calibrate", "--forward", str(file), *MACHINE, "--out", str(out)]) == 0
    constants = yaml.safe_load(out.read_text())["constants"][STEP + "expert_spread"]
    assert constants["low"] <= 0.9 <= constants["high"] and constants["low"] > 0.6


def test_a_forward_pass_has_no_host_no_step_and_no_logits() -> None:
    base = machine_of({})
    batch = ForwardWork((500,) * 8, ())
    for path, value in (("step_ms", 9.0), ("host_per_sequence_us", 400.0), ("front_end_ms", 50.0)):
        assert by_model(machine_of({STEP + path: value}), batch) == pytest.approx(by_model(base, batch))
    assert by_model(machine_of({STEP + "layer_us": 130.0}), batch) > by_model(base, batch)


@pytest.mark.parametrize(("text", "why"), TABLES["files of vllm bench forward"])
def test_a_file_that_is_none_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, why: str
) -> None:
    file = tmp_path / "times.json"
    file.write_text(text)
    assert root.main(["calibrate", "--forward", str(file), *MACHINE]) == 2
    error = capsys.readouterr().err
    assert why in error and error.count("\n") == 1


@pytest.mark.parametrize(("words", "why"), TABLES["machines of vllm bench forward"])
def test_what_the_bench_does_not_time_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    file = made(tmp_path / "times.json", machine_of({}))
    assert root.main(["calibrate", "--forward", str(file), *words]) == 2
    assert why in capsys.readouterr().err
