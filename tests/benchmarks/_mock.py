"""Builds and runs the compiled SSE server of the benchmarks (`mock_sse.c`); its log is their truth."""

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("mock_sse.c")


@dataclass(frozen=True, slots=True)
class Truth:
    """What the server did, one element per whole answer, in order of their ends; monotonic ns."""

    read_ns: np.ndarray
    first_ns: np.ndarray
    last_ns: np.ndarray
    tokens: np.ndarray

    @property
    def ttft_ms(self) -> np.ndarray:
        """From the last byte of the request read to the first token written."""
        return (self.first_ns - self.read_ns) / 1e6

    @property
    def tpot_ms(self) -> np.ndarray:
        """From the first token to the last, per token after the first."""
        return (self.last_ns - self.first_ns) / (self.tokens - 1) / 1e6


class Mock:
    """One mock server on `core` (None: anywhere) while the context lasts; `truth()` ends it."""

    def __init__(self, core: int | None = None, **options: float) -> None:
        self._core = core
        self._options = options

    def __enter__(self) -> "Mock":
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mock_sse")))
            self._log = folder / "log"
            command = [str(_built(folder)), "--log", str(self._log)]
            for name, value in self._options.items():
                command += [f"--{name.replace('_', '-')}", f"{value:g}"]
            self._process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(self._process.terminate)
            if self._core is not None:
                os.sched_setaffinity(self._process.pid, {self._core})
            assert self._process.stdout is not None
            self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
            self.pid = self._process.pid
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def truth(self) -> Truth:
        """Ends the server and reads its log."""
        self._process.terminate()
        self._process.wait()
        numbers = np.array(self._log.read_text().split(), dtype=np.int64)
        return Truth(*numbers.reshape(-1, 4).T)


def _built(folder: Path) -> Path:
    """The compiled server, in `folder`."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise SystemExit("no C compiler: the benchmark's server needs one as `cc` (or name it in CC)")
    program = folder / "mock_sse"
    subprocess.run([compiler, "-O2", "-o", str(program), str(SOURCE)], check=True)
    return program
