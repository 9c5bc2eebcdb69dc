"""`loadgen.cli.prediction.processes`: workers inherit no lock, and only workers are ended."""

import threading
import time
from multiprocessing import Process

import pytest

from loadgen.cli.prediction import processes

LOCK = threading.Lock()


def lock_is_free(_: int) -> bool:
    return LOCK.acquire(timeout=0.1)


@pytest.mark.slow
def test_workers_do_not_inherit_the_locks_of_threads() -> None:
    with LOCK, processes() as parallel_map:
        assert list(parallel_map(lock_is_free, [1])) == [True]


@pytest.mark.slow
def test_an_error_ends_the_workers_and_no_other_process() -> None:
    other = Process(target=time.sleep, args=(60,))
    other.start()
    try:
        began_s = time.monotonic()
        with pytest.raises(ZeroDivisionError), processes() as parallel_map:
            parallel_map(time.sleep, [60.0])
            raise ZeroDivisionError
        assert time.monotonic() - began_s < 50, "the worker would sleep for a minute"
        assert other.is_alive()
    finally:
        other.kill()
        other.join()
