"""loadgen/quality/asking.py: the order of questions, their number at once, their end and their errors."""

import threading
import time

import pytest

from loadgen.quality.asking import Asking, Pace

AT_ONCE = 3
FAST = Pace(load_qps=0.0, per_s=None, in_flight=AT_ONCE)
PATIENCE_S = 20.0


def until_over(asking: Asking) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not asking.is_over():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_every_question_is_answered_once_and_never_more_are_in_flight_than_allowed() -> None:
    now, most, lock = 0, 0, threading.Lock()
    answers: dict[int, int] = {}

    def ask(question: int) -> int:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        time.sleep(0.001)
        with lock:
            now -= 1
        return 10 * question

    def answered(question: int, answer: int) -> bool:
        assert question not in answers
        answers[question] = answer
        return False

    with Asking(range(40), FAST, ask, answered) as asking:
        until_over(asking)
    assert answers == {number: 10 * number for number in range(40)}
    assert most <= AT_ONCE


def test_nothing_more_is_asked_once_enough_is_known() -> None:
    asked: list[int] = []

    def ask(question: int) -> int:
        asked.append(question)
        return question

    with Asking(range(10_000), FAST, ask, lambda _, answer: answer >= 5) as asking:
        until_over(asking)
    assert 5 in asked
    assert len(asked) <= 6 + AT_ONCE


def test_questions_come_at_their_pace_and_leaving_the_block_ends_them() -> None:
    asked: list[int] = []
    slow = Pace(load_qps=1.0, per_s=0.01, in_flight=AT_ONCE)
    with Asking(range(10), slow, lambda question: asked.append(question) or 0, lambda *_: False) as asking:
        assert not asking.is_over()
    assert len(asked) <= 1


def test_an_error_of_ours_ends_the_asking_and_is_raised() -> None:
    def ask(question: int) -> int:
        raise ZeroDivisionError(str(question))

    with (
        pytest.raises(ZeroDivisionError),
        Asking(range(10), FAST, ask, lambda *_: False) as asking,
    ):
        until_over(asking)
