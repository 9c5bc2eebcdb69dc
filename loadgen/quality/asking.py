"""Asks questions of a service at a pace, in threads of their own."""

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from loadgen.quality.pace import Pace

THREADS = "question"
"""The beginning of the names of its threads."""

Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Asking(Generic[Question, Answer]):
    """Questions under way. Leaving the block asks no more, and waits for answers in flight.

    `ask` blocks until a question has its answer; `answered` takes both, one call at a time, and returns True
    when no more questions are needed.
    """

    def __init__(
        self,
        questions: Iterable[Question],
        pace: Pace,
        ask: Callable[[Question], Answer],
        answered: Callable[[Question, Answer], bool],
    ) -> None:
        self._questions, self._pace, self._ask, self._answered = questions, pace, ask, answered
        self._enough = threading.Event()
        self._room = threading.Semaphore(pace.in_flight)
        self._one_at_a_time = threading.Lock()
        self._threads = ThreadPoolExecutor(pace.in_flight + 1, thread_name_prefix=THREADS)

    def __enter__(self) -> "Asking[Question, Answer]":
        self._feeding: Future[None] = self._threads.submit(self._feed)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def is_over(self) -> bool:
        """True once every question is answered or enough are. Raises the error that ended the asking."""
        if not self._feeding.done():
            return False
        self._feeding.result()
        return True

    def _feed(self) -> None:
        """Ask one question after the other at the pace, then wait for the last answers."""
        began_s, pending = time.monotonic(), []
        for number, question in enumerate(self._questions):
            if self._pace.per_s:
                due_s = began_s + number / self._pace.per_s
                self._enough.wait(max(0.0, due_s - time.monotonic()))
            self._room.acquire()
            if self._enough.is_set():
                break
            pending.append(self._threads.submit(self._one, question))
        for one in pending:
            one.result()

    def _one(self, question: Question) -> None:
        try:
            answer = self._ask(question)
            with self._one_at_a_time:
                if self._answered(question, answer):
                    self._enough.set()
        except BaseException:
            self._enough.set()
            raise
        finally:
            self._room.release()
