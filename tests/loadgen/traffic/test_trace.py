"""loadgen/traffic/trace.py, client_records.py: recorded requests, and a wrong file is one clear line."""

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from conf import ConfigError, load
from conf.specs.experiment import Arrivals, Lengths
from loadgen.traffic import trace
from tests.support.prompts.schedules import drawn

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LINES = "2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8"
AZURE = HEADER + "".join(f"{line}\r\n" for line in (*LINES, "2023-11-16 18:17:04.0781490,110,27"))
MOONCAKE = """{"timestamp": 0, "input_length": 1000, "output_length": 6, "hash_ids": [0, 1]}
{"timestamp": 40.5, "input_length": 500, "output_length": 3, "hash_ids": [2]}
{"timestamp": 277, "input_length": 28, "output_length": 92}
"""


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "a trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def request(**fields: Any) -> str:
    return json.dumps({"timestamp": 0, "input_length": 9, "output_length": 9} | fields) + "\n"


def columns(read: trace.Trace) -> list[list[int]]:
    return [column.tolist() for column in (read.due_ns, read.input_tokens, read.output_tokens)]


def test_json_lines_in_the_mooncake_form(tmp_path: Path) -> None:
    read = trace.read_trace(written(tmp_path, MOONCAKE))
    assert columns(read) == [[0, 40_500_000, 277_000_000], [1000, 500, 28], [6, 3, 92]]
    assert read.mean_qps == pytest.approx(2 / 0.277)
    assert (read.blocks, read.empty_answers) == ((), 0)


def test_csv_in_the_azure_form(tmp_path: Path) -> None:
    read = trace.read_trace(written(tmp_path, AZURE))
    assert columns(read) == [[0, 52_000_000, 98_189_000], [4808, 3180, 110], [10, 8, 27]]
    assert (len(read), read.blocks) == (3, ())


@pytest.mark.parametrize(
    "second",
    [
        "2024-05-10 00:00:01.500000",
        "2024-05-10T00:00:01.5",
        "2024-05-10T00:00:01.500Z",
        "2024-05-10 00:00:01.500000+00:00",
        "2024-05-10 02:00:01.500000+02:00",
    ],
)
def test_times_with_and_without_a_zone(second: str, tmp_path: Path) -> None:
    text = f"{HEADER}2024-05-10 00:00:00+00:00,5,5\n{second},5,5\n"
    assert trace.read_trace(written(tmp_path, text)).due_ns.tolist() == [0, 1_500_000_000]


def test_times_without_a_zone_do_not_depend_on_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"{HEADER}2023-11-05 00:30:00,5,5\n2023-11-05 03:30:00,5,5\n2023-11-05 03:30:00Z,5,5\n"
    with monkeypatch.context() as there:
        there.setenv("TZ", "America/New_York")
        time.tzset()
        due_ns = trace.read_trace(written(tmp_path, text)).due_ns
    time.tzset()
    assert (due_ns // 10**9).tolist() == [0, 10_800, 10_800]


def test_columns_are_found_by_name_and_others_are_left(tmp_path: Path) -> None:
    text = '\ufeff"GeneratedTokens", "x", TIMESTAMP,ContextTokens\n7,"a,b",2024-05-10,5\n\n8,,2024-05-11,6\n'
    assert columns(trace.read_trace(written(tmp_path, text))) == [[0, 86_400_000_000_000], [5, 6], [7, 8]]


def test_late_lines_are_put_in_order_and_equal_times_stay_as_they_stand(tmp_path: Path) -> None:
    times = [3, 1, 3, 1, 0] * 20
    text = "".join(request(timestamp=t, input_length=i) for i, t in enumerate(times, 1))
    read = trace.read_trace(written(tmp_path, text))
    order = sorted(range(len(times)), key=lambda i: times[i])
    assert read.due_ns.tolist() == [times[i] * 1_000_000 for i in order]
    assert read.input_tokens.tolist() == [i + 1 for i in order]


def test_a_request_without_an_answer_asks_for_one_token(tmp_path: Path) -> None:
    text = request(output_length=0) + request(output_length=3) + request(output_length=0)
    read = trace.read_trace(written(tmp_path, text))
    assert (read.output_tokens.tolist(), read.empty_answers) == ([1, 3, 1], 2)


@pytest.mark.parametrize(
    ("ids", "shared"), [([[0, 1], [2, 3]], False), ([[0, 1], [0, 2]], True), ([[], [], None], False)]
)
def test_shared_prefixes_are_told(ids: list[Any], shared: bool, tmp_path: Path) -> None:
    text = "".join(request(hash_ids=blocks, input_length=1024) for blocks in ids)
    read = trace.read_trace(written(tmp_path, text))
    assert read.blocks == (tuple(map(tuple, ids)) if shared else ()) and (trace.reuse(read) > 0) is shared


def test_hashes_that_do_not_fit_their_lengths_ask_for_the_size_of_a_block(tmp_path: Path) -> None:
    path = written(tmp_path, 2 * request(hash_ids=[7] * 64, input_length=1024))
    with pytest.raises(ConfigError, match="one 64 for 1024 tokens; set workload.trace_block_tokens"):
        trace.read_trace(path)
    assert trace.read_trace(path, block_tokens=16).block_tokens == 16


def test_a_part_of_a_trace_begins_at_its_own_first_request(tmp_path: Path) -> None:
    text = "".join(request(timestamp=1000 * second, input_length=second + 1) for second in range(10))
    part = trace.read_trace(written(tmp_path, text), from_s=3, span_s=4)
    assert (part.due_ns / 1e9).tolist() == [0, 1, 2, 3] and part.input_tokens.tolist() == [4, 5, 6, 7]
    with pytest.raises(ConfigError, match="no request there, its last is due at 9 s; choose another"):
        trace.read_trace(written(tmp_path, text), from_s=30)


def test_lengths_without_times_are_drawn_as_pairs_and_have_no_arrivals_of_their_own(tmp_path: Path) -> None:
    path = written(tmp_path, "input_length,model,output_length\n7,a,3\n9,a,0\n")
    pairs = trace.read_trace(path)
    assert (pairs.input_tokens.tolist(), pairs.output_tokens.tolist()) == ([7, 9], [3, 1])
    workload = load(["workload=trace", f"workload.trace={path}"]).workload
    with pytest.raises(ConfigError, match=r"for lengths without times add workload\.arrivals\.kind=poisson"):
        trace.workload_trace(workload)
    assert trace.workload_trace(replace(workload, arrivals=Arrivals())) is not None


WRONG = yaml.safe_load((Path(__file__).parents[2] / "data" / "wrong_traces.yaml").read_text())
WORDS = {"HEADER": HEADER, "REQUEST": request(), "HUGE": str(10**400), "DEEP": "[" * 100_000}


@pytest.mark.parametrize(("text", "said"), WRONG["files"], ids=itertools.count())
def test_a_wrong_file_is_one_line_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    for word, meaning in WORDS.items():
        text = text.replace(word, meaning)
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        trace.read_trace(path)
    assert f"{path}: {said}" in str(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^cannot read the trace {tmp_path}/none: No such file"):
        trace.read_trace(tmp_path / "none")
    with pytest.raises(ConfigError, match="the folder has no file .*-trace.csv of client records"):
        trace.read_trace(tmp_path)
    with pytest.raises(ConfigError, match="is not text; unpack it first"):
        trace.read_trace(written(tmp_path, b"\x1f\x8b\x08\x00"))
    with pytest.raises(ConfigError, match=": line"):
        trace.read_trace(written(tmp_path, f"{HEADER}2024-05-10,5\0,5\n"))


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.binary(), st.text(), st.text().map(lambda t: HEADER + t), st.text().map(lambda t: "{" + t))
)
def test_no_file_gets_past_its_error(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
    try:
        read = trace.read_trace(written(folder, data))
    except ConfigError as error:
        assert str(error).splitlines()[0] == str(error)
    else:
        assert len(read) >= 1


def test_resolving_fills_in_the_means(tmp_path: Path) -> None:
    workload = load(["workload=trace", f"workload.trace={written(tmp_path, AZURE)}"]).workload
    result = trace.resolve(workload)
    assert result.input_tokens == Lengths(2699, "empirical")
    assert result.output_tokens == Lengths(15, "empirical")
    assert trace.resolve(result) == result
    mixed = replace(workload, output_tokens=Lengths(140))
    assert trace.resolve(mixed).output_tokens == Lengths(140)
    plain = load().workload
    assert trace.resolve(plain) is plain and trace.workload_trace(plain) is None


@pytest.mark.parametrize("text", [request(), request() + request()])
def test_arrivals_at_one_time_cannot_be_scaled(text: str, tmp_path: Path) -> None:
    words = ["workload=trace", f"workload.trace={written(tmp_path, text)}"]
    with pytest.raises(ConfigError, match="arrivals.kind=trace needs requests at different times"):
        trace.resolve(load(words).workload)
    poisson = load([*words, "workload.arrivals.kind=poisson"]).workload
    assert trace.resolve(poisson).input_tokens.mean == 9


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
    schedule = drawn(load(words).workload, 5.0, 600)
    assert len(schedule) == pytest.approx(3000, rel=0.02) and schedule.begins is None


TWO = lines((1.0, "Gamma", 1.0), (1.0, "Gamma", 1.0))


@pytest.mark.parametrize(("text", "dataset", "said"), WRONG["records"], ids=itertools.count())
def test_wrong_records_are_one_line(text: str, dataset: str | None, said: str, tmp_path: Path) -> None:
    records(tmp_path, 0, text.replace("TWO", TWO))
    if dataset is not None:
        (tmp_path / "chunk-0-dataset.json").write_text(dataset)
    with pytest.raises(ConfigError) as caught:
        trace.read_trace(tmp_path)
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_missing_file_of_lengths_is_one_line(tmp_path: Path) -> None:
    records(tmp_path, 0, TWO)
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(ConfigError, match="cannot read the trace .*: No such file"):
        trace.read_trace(tmp_path)
