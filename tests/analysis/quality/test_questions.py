"""analysis.quality.questions: when a text is right, and files that are refused with their line."""

from pathlib import Path

import pytest

from analysis.quality import questions
from analysis.quality.questions import Question, read
from tests.support.quality.arithmetic import arithmetic, write


@pytest.mark.parametrize(
    "answer, text, right",
    [
        ("42", "The answer is 42.", True),
        ("42", "42 or 43", False),
        ("42", "It is 41, no: **42**", True),
        ("1319", "#### 1,319", True),
        ("1,319", "1319.0", True),
        ("-5", "so x = -5", True),
        ("5", "3-5", True),
        ("7", "about 7.0%", True),
        ("7", "no number", False),
        ("7", "model v7", False),
        ("1", "1.5x", False),
        ("Paris", "  Paris\n", True),
        ("Paris", "It is Paris", False),
        ("3 apples", "3 apples", True),
    ],
)
def test_texts_are_right_or_wrong(answer: str, text: str, right: bool) -> None:
    assert Question("?", answer).is_right(text) == right


def test_a_file_comes_back_as_questions(tmp_path: Path) -> None:
    made = arithmetic(50, seed=3)
    assert read(write(made, tmp_path / "sums.jsonl")) == made
    assert made == arithmetic(50, seed=3) != arithmetic(50, seed=4)
    assert all(one.is_right(f"That makes {one.answer}.") for one in made)


def test_empty_lines_and_further_keys_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    file.write_text('\ufeff{"prompt": "a", "answer": "b", "source": 1}\n\n{"prompt": "c", "answer": "d"}')
    assert read(file) == [Question("a", "b"), Question("c", "d")]


GOOD = '{"prompt": "a", "answer": "b"}\n'


@pytest.mark.parametrize(
    "text, words",
    [
        ("", "no question"),
        ("\n \n", "no question"),
        (GOOD + "{", "line 2 is no JSON"),
        (GOOD + GOOD + "[1]", "line 3 is no object"),
        (GOOD + '{"prompt": "a"}', "line 2 lacks answer"),
        ('{"prompt": "", "answer": "b"}', 'line 1: prompt is "" and no text'),
        ('{"prompt": "a", "answer": 4}', "line 1: answer is 4 and no text"),
        ("[" * 5000, "line 1 is no JSON"),
    ],
)
def test_wrong_lines_are_named(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        read(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_files_beyond_the_bounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large.jsonl"
    file.write_text(3 * GOOD)
    monkeypatch.setattr(questions, "MOST_BYTES", 70)
    with pytest.raises(ValueError, match="line 3 is beyond the 70 bytes"):
        read(file)
    monkeypatch.setattr(questions, "MOST_LINE_BYTES", 20)
    with pytest.raises(ValueError, match="line 1 is longer than 20 bytes"):
        read(file)


def test_bytes_that_are_no_text_and_a_file_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="line 1 is no JSON"):
        read(tmp_path / "bytes.jsonl")
    with pytest.raises(ValueError, match="cannot read the questions"):
        read(tmp_path / "none.jsonl")
