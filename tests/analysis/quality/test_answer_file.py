"""analysis.quality.answer_file: where answers differ, by how much, and what their file may hold."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.quality import answer_file
from analysis.quality.answer_file import (
    ANSWERS,
    MOST_NATS,
    Answer,
    AnswerRecord,
    compare,
    evidence,
    jensen_shannon,
)
from tests.support.quality.answers import answer, prompt
from tests.support.words.words import TABLES


def test_answers_are_compared_up_to_the_first_other_token() -> None:
    base, other = answer("abcde"), answer("abXde")
    comparison = compare(base, other)
    assert comparison.positions == 3 and comparison.flipped
    assert comparison.base_tokens == base.tokens[:3] and comparison.tokens == other.tokens[:3]
    assert comparison.nats[:2] == (0.0, 0.0) and comparison.nats[2] == comparison.most_nats > 0.1
    assert comparison.mean_nats == pytest.approx(comparison.nats[2] / 3)
    assert comparison == compare(base, answer("abXYZ")), "what comes after it counts for nothing"
    whole = compare(base, base)
    assert whole.positions == 5 and not whole.flipped and whole.most_nats == 0.0


def test_a_side_that_is_missing_failed() -> None:
    whole = {"base": answer("abc"), "again": answer("abc"), "candidate": answer("abX")}
    assert evidence(3, whole).unanswered == ()
    result = evidence(3, {"base": whole["base"], "again": whole["again"]})
    assert result.candidate is None and result.again is not None and result.unanswered == ("candidate",)
    result = evidence(3, {"again": whole["again"], "candidate": whole["candidate"]})
    assert result.again is None and result.candidate is None and result.unanswered == ("base",)


@pytest.mark.parametrize(
    "tokens, alternatives",
    [((), ()), ((1, 2), ({1: -0.1},)), ((1,), ({},)), ((1,), ({1: math.nan},)), ((1,), ({1: 0.7},))],
)
def test_answers_without_log_probabilities_are_refused(
    tokens: tuple[int, ...], alternatives: tuple[dict[int, float], ...]
) -> None:
    with pytest.raises(ValueError, match="alternatives|log probability"):
        Answer(tokens, alternatives)


def whole(p: np.ndarray, q: np.ndarray) -> float:
    """The divergence over the whole vocabulary."""
    middle = (p + q) / 2
    return sum(float(np.sum(one[one > 0] * np.log(one[one > 0] / middle[one > 0]))) for one in (p, q)) / 2


def likely(p: np.ndarray, count: int) -> dict[int, float]:
    """The most likely tokens, as an engine tells them."""
    with np.errstate(divide="ignore"):
        return {int(token): float(np.log(p[token])) for token in np.argsort(-p)[:count]}


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(1, 25), st.floats(0.05, 3))
def test_it_is_a_lower_bound_of_the_divergence_over_the_whole_vocabulary(
    seed: int, vocabulary: int, count: int, spread: float
) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.full(vocabulary, spread), 2)
    result = jensen_shannon(likely(p, count), likely(q, count))
    assert 0 <= result <= whole(p, q) + 1e-9
    assert result == pytest.approx(jensen_shannon(likely(q, count), likely(p, count)), abs=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 20))
def test_it_is_the_true_divergence_where_every_token_is_known(seed: int, vocabulary: int) -> None:
    p, q = np.random.default_rng(seed).dirichlet(np.ones(vocabulary), 2)
    assert jensen_shannon(likely(p, 20), likely(q, 20)) == pytest.approx(whole(p, q), abs=1e-9)


NATS = st.dictionaries(st.integers(0, 30), st.floats(-40, 0) | st.just(-math.inf), max_size=21)


@given(NATS, NATS)
def test_rounded_probabilities_of_more_than_1_stay_within_bounds(
    a: dict[int, float], b: dict[int, float]
) -> None:
    assert 0 <= jensen_shannon(a, b) <= MOST_NATS
    assert jensen_shannon(a, a) == pytest.approx(0.0, abs=1e-12)


def test_certain_and_opposite_answers_share_nothing() -> None:
    a, b = {1: 0.0, 2: -math.inf}, {1: -math.inf, 2: 0.0}
    assert jensen_shannon(a, b) == pytest.approx(math.log(2))
    half = {1: math.log(0.5), 2: math.log(0.5)}
    by_hand = 0.5 * math.log(1 / 0.75) + 0.25 * math.log(0.5 / 0.75) + 0.25 * math.log(0.5 / 0.25)
    assert jensen_shannon(a, half) == pytest.approx(by_hand)


def test_tokens_that_only_one_side_tells_count_as_far_as_the_other_bounds_them() -> None:
    """Token 2 has at most 0.4 on the other side, which may be all it has; with 0.01 it cannot."""
    assert jensen_shannon({1: math.log(0.6), 2: math.log(0.4)}, {1: math.log(0.6), 3: math.log(0.4)}) == 0.0
    b = {1: math.log(0.6), 3: math.log(0.39), 4: math.log(0.01)}
    assert jensen_shannon({1: math.log(0.6), 2: math.log(0.4)}, b) > 0.2


@pytest.mark.parametrize("nats", [0.1, math.inf, math.nan])
def test_what_is_no_log_probability_is_refused(nats: float) -> None:
    with pytest.raises(ValueError, match="token 7 is no log probability"):
        jensen_shannon({1: -1.0}, {1: -1.0, 7: nats})


POSITION = st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32), min_size=1, max_size=21)
ANSWER = st.lists(st.tuples(st.integers(0, 2**31 - 1), POSITION), min_size=1, max_size=5).map(
    lambda places: Answer(tuple(token for token, _ in places), tuple(likely for _, likely in places))
)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.none(), ANSWER), max_size=6))
def test_answers_are_read_as_they_were_written(tmp_path: Path, answers: list[Answer | None]) -> None:
    written = [
        AnswerRecord(
            number // 2, 7 * number, number % 2, answer, None if answer else "no whole answer", "a text"
        )
        for number, answer in enumerate(answers)
    ]
    path = tmp_path / answer_file.FILE
    answer_file.write(reversed(written), path)
    assert answer_file.read(path) == written


def test_prompts_with_other_tokens_have_other_digests() -> None:
    assert answer_file.digest([1, 2, 3]) == answer_file.digest((1, 2, 3))
    assert len({answer_file.digest(tokens) for tokens in ([1, 2, 3], [1, 3, 2], [1, 2], [])}) == 4


@pytest.mark.parametrize(("changed", "why"), TABLES["files of answers"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, changed: dict[str, object], why: str) -> None:
    good = {
        "prompt": [0],
        "digest": [1],
        "repeat": [0],
        "error": [None],
        "text": ["yes"],
        "tokens": [[5]],
        "alternatives": [[2]],
        "alternative_ids": [[5, 6]],
        "log_probabilities": [[-0.5, -2.0]],
    }
    columns = {name: values for name, values in (good | changed).items() if values is not None}
    table = pa.table({name: pa.array(columns[name], ANSWERS.field(name).type) for name in columns})
    path = tmp_path / answer_file.FILE
    pq.write_table(table, path)
    with pytest.raises(ValueError, match=why):
        answer_file.read(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    pq.write_table(ANSWERS.with_metadata({"schema_version": "2"}).empty_table(), tmp_path / "later.parquet")
    with pytest.raises(ValueError, match="has schema_version 2, this version reads 1 alone"):
        answer_file.read(tmp_path / "later.parquet")


def test_a_longer_file_than_any_gate_writes_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / answer_file.FILE
    answer_file.write([AnswerRecord(n, 1, 0, None, "timeout") for n in range(5)], path)
    for bound, most in (("MOST_ANSWERS", 4), ("MOST_BYTES", 100)):
        with monkeypatch.context() as patch, pytest.raises(ValueError, match=f"5 rows .* at most .*{most}"):
            patch.setattr(answer_file, bound, most)
            answer_file.read(path)


def test_the_evidence_has_a_row_for_each_position_and_each_failure(tmp_path: Path) -> None:
    result = [prompt(5, 0.1, 0.2, "candidate"), prompt(8, 0.0, 0.3, flipped=True)]
    answer_file.write_evidence(result, tmp_path / "evidence.parquet")
    table = pq.read_table(tmp_path / "evidence.parquet")
    assert table.schema.equals(answer_file.EVIDENCE, check_metadata=True)
    rows = table.to_pylist()
    assert [(row["prompt"], row["pair"], row["unanswered"]) for row in rows] == [
        *[(5, "again", None)] * 4,
        (5, None, "candidate"),
        *[(8, "again", None)] * 4,
        *[(8, "candidate", None)] * 4,
    ]
    last = {"position": 3, "base_token": 3, "token": 99, "divergence_nats": 0.3, "differs": True}
    assert rows[-1].items() >= last.items()
