"""analysis.exchange on real results of other tools: our definitions, no claim beyond what they tell."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import RunError
from analysis.exchange import Foreign, is_foreign, load_foreign, readers
from analysis.exchange.foreign import failure
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from analysis.views import side_by_side
from analysis.views.side_by_side import NO_CLAIM
from tests.support.words.words import TABLES

FOLDER = Path(__file__).parents[2] / "data" / "foreign"
VLLM, GUIDELLM = FOLDER / "vllm-0.32.0.json", FOLDER / "guidellm-0.8.1.json"
CLOSED, AIPERF = FOLDER / "guidellm-0.8.1-closed.json", FOLDER / "aiperf-0.13.0" / "profile_export.jsonl"
ALL = (VLLM, GUIDELLM, CLOSED, AIPERF)
Change = Callable[[Any], Any]


def show(path: Path, words: Sequence[str] = ()) -> str:
    """The answers to the loads in a file."""
    bounds_ms = side_by_side.foreign_bounds(words)
    return "\n".join(str(side_by_side.foreign_answer(load, bounds_ms)) for load in load_foreign(path))


def answered(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]


def vllm_tree() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VLLM.read_text())
    return found


def aiperf_lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in AIPERF.read_text().splitlines()]


def saved(path: Path, *trees: Any) -> Path:
    path.write_text("".join(f"{json.dumps(tree)}\n" for tree in trees))
    return path


def one(path: Path) -> Foreign:
    (result,) = load_foreign(path)
    return result


@pytest.mark.parametrize(
    ("path", "tool", "version", "counts"),
    [
        (VLLM, readers.VLLM_BENCH, "unknown", [(25, 3, 2)]),
        (GUIDELLM, readers.GUIDELLM, "0.8.1", [(13, 2, 1), (12, 2, 2)]),
        (CLOSED, readers.GUIDELLM, "0.8.1", [(10, 1, 1)]),
        (AIPERF, readers.AIPERF, "0.13.0", [(24, 4, 2)]),
    ],
)
def test_a_real_file_is_known_by_its_content(
    path: Path, tool: str, version: str, counts: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    renamed = tmp_path / "result.txt"
    renamed.write_bytes(path.read_bytes())
    assert is_foreign(renamed) and not is_foreign(tmp_path) and not is_foreign(tmp_path / "none")
    for found in (load_foreign(path), load_foreign(renamed)):
        assert {foreign.tool for foreign in found} == {tool}
        states = [foreign.measured["status"].to_pylist() for foreign in found]
        assert [tuple(map(s.count, ("ok", "http_error", "truncated"))) for s in states] == counts
    assert {foreign.version for foreign in load_foreign(path)} == {version}


@pytest.mark.parametrize("path", ALL)
def test_rows_have_our_schema_and_a_failure_is_infinite_everywhere(path: Path) -> None:
    for foreign in load_foreign(path):
        rows = foreign.measured
        assert foreign.requests.schema.equals(records.REQUESTS, check_metadata=True)
        assert rows["due_ns"].to_pylist() == sorted(rows["due_ns"].to_pylist())
        failed = metrics.status_in(rows, *records.FAILURES)
        for name in ("ttft_from_send", "tpot", "e2e_from_send"):
            assert np.isinf(foreign.latencies[name][failed]).all()
            assert np.isfinite(foreign.latencies[name][~failed]).all()
            assert quantile(foreign.latencies[name], 0.99) == np.inf
        assert set(rows.filter(failed)["error"].to_pylist()).isdisjoint({None, ""})


@pytest.mark.parametrize("path", [VLLM, AIPERF])
def test_answered_requests_alone_give_the_tools_own_figures(path: Path) -> None:
    foreign = one(path)
    assert foreign.own.keys() == foreign.latencies.keys()
    for name, own in foreign.own.items():
        ours = [quantile(answered(foreign.latencies[name]), q) for q in (0.5, 0.9, 0.99)]
        assert ours == pytest.approx(own, rel=2e-4)  # gaps are kept in whole us
        assert [quantile(foreign.latencies[name], q) for q in (0.9, 0.99)] == [np.inf, np.inf]


def test_guidellm_rows_are_its_own_request_by_request() -> None:
    for foreign, benchmark in zip(
        load_foreign(GUIDELLM), json.loads(GUIDELLM.read_text())["benchmarks"], strict=True
    ):
        stats = sorted(
            benchmark["requests"]["successful"], key=lambda s: s["info"]["timings"]["targeted_start"]
        )
        for name, key, scale in (
            ("ttft_from_send", "time_to_first_token_ms", 1.0),
            ("tpot", "inter_token_latency_ms", 1.0),
        ):
            told = [scale * stat[key] for stat in stats]
            assert answered(foreign.latencies[name]).tolist() == pytest.approx(told, abs=1e-3)
        lag = [1e3 * stat["request_dispatch_delay"] for stat in stats]
        ttft = answered(metrics.ttft(foreign.measured)) - answered(foreign.latencies["ttft_from_send"])
        assert ttft.tolist() == pytest.approx(lag, abs=1e-3)
        assert min(lag) > 0


@pytest.mark.parametrize("path", [VLLM, CLOSED, AIPERF])
def test_a_due_time_that_is_not_told_leaves_the_lag_unknown_and_not_zero(path: Path) -> None:
    foreign = one(path)
    assert not foreign.due_known
    assert np.isnan(metrics.send_lag(foreign.measured)).all()
    assert any("count from the send" in note for note in foreign.notes)


def test_the_offered_load_is_what_the_file_says(tmp_path: Path) -> None:
    assert (one(VLLM).experiment.rate_qps, one(VLLM).experiment.open_loop, one(VLLM).experiment.model) == (
        10,
        True,
        "mock",
    )
    assert (one(AIPERF).experiment.rate_qps, one(AIPERF).experiment.arrivals) == (10, "poisson")
    assert [foreign.experiment.rate_qps for foreign in load_foreign(GUIDELLM)] == [10, 20]
    assert (one(CLOSED).experiment.open_loop, one(CLOSED).experiment.concurrency) == (False, 4)
    unlimited = one(saved(tmp_path / "x", vllm_tree() | {"request_rate": "inf"}))
    assert (unlimited.experiment.rate_qps, unlimited.experiment.open_loop) == (None, False)


def test_older_files_of_vllm_are_read_without_what_they_lack(tmp_path: Path) -> None:
    tree = {k: v for k, v in vllm_tree().items() if k not in ("latencies", "start_times", "queue_times")}
    result = one(saved(tmp_path / "x", tree))
    assert result.measured["due_ns"].null_count == 30 and result.seconds is None
    newer = one(VLLM)
    for name in ("ttft_from_send", "tpot"):
        ours = [quantile(answered(f.latencies[name]), 0.9) for f in (result, newer)]
        assert ours[0] == pytest.approx(ours[1], rel=1e-4)
    assert "the rate that was sent is unknown" in show(tmp_path / "x")


def test_appended_results_are_loads_of_their_own_and_a_cut_one_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "x", vllm_tree(), vllm_tree() | {"request_rate": 20.0})
    assert [foreign.experiment.rate_qps for foreign in load_foreign(path)] == [10, 20]
    path.write_text(path.read_text()[:-50])
    cut = one(path)
    assert cut.experiment.rate_qps == 10
    assert cut.notes[-1] == "its last line is cut off and left out"


def test_records_of_a_killed_aiperf_are_read_up_to_the_cut_and_a_warm_up_is_not_measured(
    tmp_path: Path,
) -> None:
    assert (one(AIPERF).requests.num_rows, one(AIPERF).measured.num_rows) == (33, 30)
    path = tmp_path / "x"
    path.write_text(AIPERF.read_text()[:-40])
    result = one(path)
    assert result.measured.num_rows == 29
    assert result.version == "unknown" and not result.own and result.experiment.open_loop is None


def test_a_summary_of_another_run_is_not_believed(tmp_path: Path) -> None:
    saved(tmp_path / "profile_export.jsonl", *aiperf_lines()[:20])
    (tmp_path / readers.AIPERF_SUMMARY).write_bytes(AIPERF.with_name(readers.AIPERF_SUMMARY).read_bytes())
    assert one(tmp_path / "profile_export.jsonl").own == {}


def test_a_cancelled_request_is_neither_answered_nor_failed(tmp_path: Path) -> None:
    lines = aiperf_lines()
    lines[-1]["metadata"]["was_cancelled"] = True
    result = one(saved(tmp_path / "x", *lines))
    assert result.measured["status"].to_pylist().count("pending") == 1
    assert np.isnan(result.latencies["ttft_from_send"]).sum() == 1


def test_an_answer_shorter_than_asked_is_a_failure_where_the_end_was_to_be_ignored(tmp_path: Path) -> None:
    tree = json.loads(CLOSED.read_text())
    tree["benchmarks"][0]["requests"]["successful"][0]["output_tokens"] = 11
    result = one(saved(tmp_path / "x", tree)).measured
    assert result["error_kind"].to_pylist().count("token_count") == 1
    assert result["status"].to_pylist().count("ok") == 9


def test_an_answer_in_two_events_has_no_tpot_to_flatter_with(tmp_path: Path) -> None:
    tree = vllm_tree()
    whole = next(i for i, gaps in enumerate(tree["itls"]) if len(gaps) == 11)
    tree["itls"][whole] = [sum(tree["itls"][whole])]
    result = one(saved(tmp_path / "x", tree))
    assert np.isnan(result.latencies["tpot"]).sum() == 1


def test_failures_alone_leave_tpot_unknown_and_ttft_infinite(tmp_path: Path) -> None:
    lines = [line for line in aiperf_lines() if line.get("error")]
    result = one(saved(tmp_path / "x", *lines))
    assert quantile(result.latencies["ttft_from_send"], 0.1) == np.inf
    assert quantile(result.latencies["tpot"], 0.9) is None
    assert any("TPOT and ITL are unknown" in note for note in result.notes)


@pytest.mark.parametrize(("message", "code", "token", "status", "kind"), TABLES["failures of other tools"])
def test_a_failure_is_sorted_by_its_message(
    message: str, code: int | None, token: bool, status: str, kind: str
) -> None:
    row = failure(message, code, token)
    assert (row["status"], row["error_kind"]) == (status, kind)
    assert row["status"] in records.FAILURES


def without(*names: str) -> Change:
    return lambda tree: {k: v for k, v in tree.items() if k not in names}


def guidellm(**requests: Any) -> Change:
    """A file of GuideLLM whose one benchmark has these requests."""
    tree = json.loads(CLOSED.read_text())
    return lambda _: tree | {"benchmarks": [tree["benchmarks"][0] | {"requests": requests}]}


SPOILT: list[tuple[Change, str]] = [
    (without("ttfts", "itls"), "run vllm bench serve with --save-result --save-detailed"),
    (lambda t: t | dict.fromkeys(readers.VLLM_DETAIL, []), "holds no request"),
    (lambda t: t | {"ttfts": t["ttfts"][:3]}, "not of a version that is read here"),
    (lambda t: t | {"ttfts": ["soon"] * 30}, "not of a version that is read here"),
    (guidellm(), "holds no request of its benchmark"),
    (guidellm(successful=[{"info": {}}]), "KeyError 'timings'"),
    (guidellm(errored=[{"info": {"timings": {"request_start": 1e17}}}]), "not of a version"),
]
STRANGE = [(lambda _, tree=tree: tree, message) for tree, message in TABLES["files of other tools"]]


@pytest.mark.parametrize(("change", "expected"), [*SPOILT, *STRANGE])
def test_what_cannot_be_judged_is_refused_in_one_line(change: Change, expected: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.json", change(vllm_tree()))
    with pytest.raises(RunError, match="(?s)^.*$") as caught:
        load_foreign(path)
    assert expected in str(caught.value) and "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is empty"),
        (b'{"backend": "openai", "ttf', "is cut off or not JSON"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        (b"hello\nworld\n", "is cut off or not JSON"),
        (b"[" * 100_000, "not of a version that is read here"),
        (b"x\n" + b"[" * 100_000, "is cut off or not JSON"),
    ],
)
def test_a_file_that_is_no_json_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(RunError, match=expected):
        show(tmp_path / "x")


def test_a_file_with_a_byte_order_mark_and_a_line_separator_within_a_word_is_read(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in AIPERF.read_text().splitlines()]
    lines[-1]["error"] = {"message": "one\u2028two"}
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (tmp_path / "x").write_text(text, "utf-8-sig")
    (result,) = load_foreign(tmp_path / "x")
    assert result.requests.num_rows == len(lines) and "one two" in result.requests["error"].to_pylist()


def test_words_of_a_file_neither_break_a_line_nor_move_the_cursor(tmp_path: Path) -> None:
    path = saved(tmp_path / "x.json", vllm_tree() | {"model_id": "a\x1b[31m\nVALID  9 QPS"})
    for text in (show(path), str(side_by_side.answer([path, VLLM]))):
        assert "model a [31m VALID" in text and all(line.isprintable() for line in text.split("\n"))
        assert not any(line.startswith("VALID") for line in text.split("\n"))


@pytest.mark.parametrize("path", ALL)
def test_the_screen_claims_nothing_and_says_what_is_unknown(path: Path) -> None:
    text = show(path)
    loads = load_foreign(path)
    assert text.count("FOREIGN  ") == text.count(NO_CLAIM) == len(loads)
    assert not any(word in text for word in ("VALID", "KEPT", "certified"))
    for foreign in loads:
        assert all(f"  {note}" in text for note in foreign.notes)
    assert ("TTFT from due" in text) == loads[0].due_known


@pytest.mark.parametrize(("bound_ms", "expected"), [(1000, "KEPT"), (10, "MISSED"), (190, "UNDECIDED")])
def test_a_bound_is_judged_by_the_interval(bound_ms: float, expected: str, tmp_path: Path) -> None:
    count = 4000
    rng = np.random.default_rng(3)
    tree = vllm_tree() | {
        **dict.fromkeys(("itls", "errors"), None),
        "ttfts": (0.1 + 0.1 * rng.random(count)).tolist(),
        "itls": [[0.01] * 11] * count,
        "output_lens": [12] * count,
        "input_lens": [24] * count,
        "errors": [""] * count,
        "start_times": np.cumsum(rng.exponential(0.2, count)).tolist(),
        "latencies": None,
    }
    text = show(saved(tmp_path / "x", tree), [f"slo.ttft_p90_ms={bound_ms}", "slo.tpot_p90_ms=20"])
    assert f"(95 %) against {bound_ms} ms: {expected}" in text
    assert "p90 TPOT: 10.0 ms [10.0, 10.0] (95 %) against 20 ms: KEPT" in text


def test_few_requests_decide_nothing() -> None:
    text = show(VLLM, ["slo.ttft_p90_ms=2000"])
    assert "p90 TTFT from send: inf ms: above 2000 ms, interval unknown: needs 100 requests" in text


@pytest.mark.parametrize(
    "word", ["slo.ttft_p90_ms=0", "slo.ttft_p90_ms=fast", "slo.ttft_p90_ms=nan", "rate=3"]
)
def test_a_word_that_is_no_bound_is_refused(word: str) -> None:
    with pytest.raises(RunError, match=r"must be a positive number|is no bound for another tool's result"):
        show(VLLM, [word])
