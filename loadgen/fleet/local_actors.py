"""Load actors as processes of this machine: load on an endpoint needs no cluster, which takes seconds.

`python -m loadgen.fleet.local_actors DESCRIPTOR` is such a process. Calls go through a pair of sockets that
only the driver and the process hold.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from inspect import isawaitable
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from loadgen.fleet.load_actor import ActorError, ActorFailedError, LoadActor, Place, Reply

Call = tuple[int, str, tuple[Any, ...]]
"""A number, which the answer repeats, a method and its arguments."""
Answer = tuple[int, Any, str]
"""The number of a call, and its result or the error's text."""
AFTERLIFE_S = 10.0
"""Time for a load actor to write down what it knows when its driver is dead (our choice)."""


class LocalActor:
    """A load actor in a child process, which no Ctrl-C of the terminal reaches."""

    def __init__(self) -> None:
        self._pipe, there = Pipe()
        command = [sys.executable, "-m", __spec__.name, str(there.fileno())]
        self._process = subprocess.Popen(
            command,
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        there.close()
        self._numbers = count()
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._replies: dict[int, Future[Any]] = {}
        self._is_over = False
        # A process that stands still reads nothing, and the driver must not wait for it.
        for work in (self._send, self._receive):
            threading.Thread(target=work, daemon=True).start()

    def call(self, method: str, *words: Any) -> Reply:
        """Begin a method of the actor's."""
        number, reply = next(self._numbers), Future[Any]()
        self._replies[number] = reply
        self._calls.put((number, method, words))
        if self._is_over:
            self._end()
        return reply.result

    def kill(self) -> None:
        """End its process at once."""
        self._process.kill()
        self._process.wait()

    def _send(self) -> None:
        with suppress(OSError):
            while call := self._calls.get():
                self._pipe.send(call)

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, value, failure = self._pipe.recv()
                reply = self._replies.pop(number)
                if failure:
                    reply.set_exception(ActorFailedError(failure))
                else:
                    reply.set_result(value)
        self._process.wait()
        self._end()

    def _end(self) -> None:
        """Fail all calls: the process has ended."""
        self._is_over = True
        self._calls.put(None)
        code = self._process.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        while self._replies:
            with suppress(KeyError):
                self._replies.pop(next(iter(self._replies))).set_exception(
                    ActorError(f"the load actor's process ended {how}")
                )


class LocalActors:
    """This machine."""

    def start(self) -> LocalActor:
        """Begin the process of another one."""
        return LocalActor()

    def fetch_left(self, places: Sequence[Place], folder: Path, timeout_s: float) -> list[str]:
        """Nothing: their shards are in `folder` already."""
        return []


async def answer_calls(pipe: Connection) -> None:
    """Be a load actor until the driver hangs up; calls run side by side, as Ray's do."""
    actor, loop, calls = LoadActor(), asyncio.get_running_loop(), set[asyncio.Task[None]]()
    sending, receiving = ThreadPoolExecutor(1), ThreadPoolExecutor(1)

    async def answer(number: int, method: str, words: tuple[Any, ...]) -> None:
        reply: Answer
        try:
            result = getattr(actor, method)(*words)
            reply = number, await result if isawaitable(result) else result, ""
        except Exception as error:  # noqa: BLE001  the border of the process: whatever it is, the driver hears it
            reply = number, None, f"{type(error).__name__}: {error}"
        with suppress(OSError):
            await loop.run_in_executor(sending, pipe.send, reply)

    with suppress(EOFError, OSError):
        while True:
            task = loop.create_task(answer(*await loop.run_in_executor(receiving, pipe.recv)))
            calls.add(task)
            task.add_done_callback(calls.discard)
    # The actor watches its driver too, and ends this process as soon as all is written.
    await asyncio.sleep(AFTERLIFE_S)


if __name__ == "__main__":
    asyncio.run(answer_calls(Connection(int(sys.argv[1]))))
    os._exit(1)
