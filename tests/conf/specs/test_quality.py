"""conf.specs.quality: its file says what the spec says, and its load is a word or a rate."""

import pytest

from conf import load
from conf.specs.search import Quality


def test_the_file_says_what_the_spec_says() -> None:
    assert load([]).quality == Quality()


@pytest.mark.parametrize("word, rate_qps", [("idle", None), ("2.5", 2.5), ("3", 3.0)])
def test_the_load_is_a_word_or_a_rate(word: str, rate_qps: float | None) -> None:
    asked = load([f"quality.load={word}"]).quality
    assert (asked.load, asked.rate_qps) == (word, rate_qps)
