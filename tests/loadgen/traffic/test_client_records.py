"""loadgen/traffic/client_records.py: rates, burstiness and lengths as recorded; wrong files are one line."""

import json
from pathlib import Path

import numpy as np
import pytest

from conf import ConfigError, load
from loadgen.traffic import trace
from loadgen.traffic.traffic import Traffic

LENGTHS = {"input_tokens": "{100: 0.25, 300: 0.75}", "output_tokens": "{10: 1.0}"}
SPAN_S = 600


def records(folder: Path, number: int, lines: str, lengths: object = None) -> Path:
    (folder / f"chunk-{number}-trace.csv").write_text(lines)
    tree = {"0": LENGTHS} if lengths is None else lengths
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(tree))
    return folder


def lines(*spans: tuple[float, str, float]) -> str:
    return "".join(
        f"{SPAN_S * i},{rate},1,{kind},{shape},0.1\n" for i, (rate, kind, shape) in enumerate(spans)
    )


def test_counts_and_lengths_are_those_of_the_records(tmp_path: Path) -> None:
    records(tmp_path, 0, lines((2.0, "Gamma", 1.0), (0, "", 0), (1.0, "Weibull", 0.5)))
    records(tmp_path, 7, lines((0.5, "", 0), (0.5, "Gamma", 0.1), (0, "", 0)))
    read = trace.read_trace(tmp_path)
    assert len(read) == 600 * (2 + 1 + 0.5 + 0.5) and (np.diff(read.due_ns) >= 0).all()
    seconds = read.due_ns / 1e9
    assert np.count_nonzero(seconds < 600) == pytest.approx(1500, abs=2)
    assert set(read.input_tokens.tolist()) == {100, 300} and set(read.output_tokens.tolist()) == {10}
    assert read.input_tokens.mean() == pytest.approx(250, rel=0.05)


def test_gaps_are_as_bursty_as_recorded(tmp_path: Path) -> None:
    records(tmp_path, 0, f"0,10,1,Gamma,0.25,0.4\n{SPAN_S},10,1,Weibull,0.5,0.05\n")
    for begin, cv in ((0, 2.0), (SPAN_S, 5**0.5)):  # 1/sqrt(shape), and of Weibull with shape 1/2
        gaps = np.diff(trace.read_trace(tmp_path, from_s=begin, span_s=SPAN_S, seed=3).due_ns)
        assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)


def test_the_seed_draws_and_another_client_changes_no_other(tmp_path: Path) -> None:
    records(tmp_path, 0, lines((1.0, "Gamma", 1.0), (1.0, "Gamma", 1.0)))
    one, other = trace.read_trace(tmp_path), trace.read_trace(tmp_path, seed=1)
    assert (trace.read_trace(tmp_path).due_ns == one.due_ns).all() and (one.due_ns != other.due_ns).any()
    records(tmp_path, 1, lines((1.0, "Gamma", 1.0), (0.0, "", 0)))
    both = trace.read_trace(tmp_path)
    assert len(both) == len(one) + SPAN_S


def test_lengths_of_a_span_are_the_latest_before_it(tmp_path: Path) -> None:
    later = dict.fromkeys(LENGTHS, "{7: 1.0}")
    empty = dict.fromkeys(LENGTHS, "{}")
    two = lines((1.0, "Gamma", 1.0), (1.0, "Gamma", 1.0))
    records(tmp_path, 0, two, {"0": empty, "600": later})
    assert set(trace.read_trace(tmp_path).input_tokens.tolist()) == {7}
    records(tmp_path, 0, two, {"0": LENGTHS, "600": later})
    assert set(trace.read_trace(tmp_path, from_s=600).input_tokens.tolist()) == {7}


def test_records_are_a_workload_that_is_scaled_to_a_rate(tmp_path: Path) -> None:
    records(tmp_path, 0, lines((1.0, "Gamma", 1.0), (1.0, "Gamma", 1.0)))
    words = ["workload=trace", f"workload.trace={tmp_path}", "workload.trace_span_s=600"]
    traffic = Traffic(load(words).workload)
    drawn = traffic.draw(5.0, {"window": (0, 600 * 10**9)}, window_index=0, first_seq=0, seed=1)
    assert len(drawn) == pytest.approx(3000, rel=0.02) and drawn.begins is None


TWO = lines((1.0, "Gamma", 1.0), (1.0, "Gamma", 1.0))
WRONG = {
    ("0,1\n", None): "chunk-0-trace.csv line 1 has 2 columns, not start, rate, cv, distribution",
    ("0,x,1,Gamma,1,1\n", None): "chunk-0-trace.csv line 1: could not convert string to float: 'x'",
    ("0,1,1,Normal,1,1\n", None): "line 1: 'Normal' is no distribution of gaps; Gamma and Weibull are",
    ("0,nan,1,Gamma,1,1\n", None): "line 1: its numbers must be finite, and not negative",
    ("0,1,1,Gamma,0,1\n", None): "line 1: gaps of shape 0 cannot be drawn",
    ("0,1,1,Gamma,1,1\n", None): "chunk-0-trace.csv: two lines are needed to know how long a span is",
    ("5,1,1,Gamma,1,1\n5,1,1,Gamma,1,1\n", None): "chunk-0-trace.csv: its times do not ascend",
    (lines((0, "", 0), (0, "", 0)), None): "no client has a request from 0 s on",
    (lines((1e6, "Gamma", 1.0), (0, "", 0)), None): "more than 5000000 requests; take a part of them",
    (TWO, "[]"): "chunk-0-dataset.json is not a JSON object",
    (TWO, '{"0": {"input_tokens": "{5: 1}"}}'): "chunk-0-dataset.json at 0 has no output_tokens",
    (TWO, '{"0": {"input_tokens": "__import__(1)", "output_tokens": "{5: 1}"}}'): "must be shares by length",
    (TWO, '{"0": {"input_tokens": "{5: -1}", "output_tokens": "{5: 1}"}}'): "a length or a share that cannot",
    (TWO, '{"x": {"input_tokens": "{5: 1}", "output_tokens": "{5: 1}"}}'): "'x' is no time in seconds",
    (
        TWO,
        '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}',
    ): "no lengths, but its client has requests",
}


@pytest.mark.parametrize("wrong", WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_one_line(wrong: tuple[str, str | None], tmp_path: Path) -> None:
    text, dataset = wrong
    records(tmp_path, 0, text)
    if dataset is not None:
        (tmp_path / "chunk-0-dataset.json").write_text(dataset)
    with pytest.raises(ConfigError) as caught:
        trace.read_trace(tmp_path)
    assert WRONG[wrong] in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_missing_file_of_lengths_is_one_line(tmp_path: Path) -> None:
    records(tmp_path, 0, TWO)
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(ConfigError, match="cannot read the trace .*: No such file"):
        trace.read_trace(tmp_path)
