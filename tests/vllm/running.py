"""vLLM that runs: a service under the real fleet with vLLM's own counters, and programs of their own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp

from analysis.results.json_border import to_tree
from analysis.results.runs import Run, load_run
from conf import Experiment, load
from loadgen.run.jobs import Job, Service, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start
from serve_apps.routing.serve_routers import LOOPBACK, reserved_port
from serve_apps.vllm_engine.app import SERVER, guarded
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, START_S, until
from tests.support.words.words import over

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Up:
    """The service, the words that describe it and its load, and where its run folders go."""

    served: Service
    words: Sequence[str]
    out: Path

    def run(self, job: type[Job], *words: str) -> tuple[dict[str, Any], Run]:
        """Load the running service as `loadgen` does; the conclusion and the run's folder."""
        experiment = load(over(self.words, *over([f"out={self.out}", f"run={job.verb}"], *words)))
        folder = RunFolder.create(Path(experiment.out), experiment.run)
        site = Site(start, lambda *_: nullcontext(self.served))
        tree = to_tree(RunLifecycle(job(experiment), folder, site, lambda *_, **__: None).measure())
        return tree, load_run(folder.path)

    def until_valid(self, job: type[Job], check: Callable[[dict[str, Any], Run], None], *words: str) -> None:
        """Repeat a run until it is valid, as `tries.valid` does; `check` gets each."""

        def tried(number: int) -> dict[str, Any]:
            tree, run = self.run(job, *words, f"run={job.verb}-{number}")
            check(tree, run)
            return tree

        tries.valid(tried, enough=lambda tree: bool(tree["valid"]))

    def counters(self, names: Sequence[str]) -> dict[str, float]:
        """vLLM's own totals, summed over reasons and replicas."""
        return counters(self.pages(), names)

    def block_tokens(self) -> int:
        """Tokens of a block of the prefix cache, as every replica tells."""
        told = re.findall(r'^vllm:cache_config_info{.*\bblock_size="(\d+)"', "".join(self.pages()), re.M)
        (tokens,) = set(told)
        return int(tokens)

    def pages(self) -> list[str]:
        urls = self.served.metrics_urls.values()
        return [urllib.request.urlopen(url, timeout=30).read().decode() for url in urls]


def start(experiment: Experiment, verb: str, emit: Any) -> tuple[Start, None]:
    return Start(prediction_qps=experiment.search.expected_qps), None


def counters(pages: Iterable[str], names: Iterable[str]) -> dict[str, float]:
    """Totals of vLLM's pages of metrics, summed over labels and replicas."""
    text = "\n".join(pages)
    result = {name: re.findall(rf"^vllm:{name}{{.*}} (\S+)$", text, re.MULTILINE) for name in names}
    return {name: sum(map(float, values)) for name, values in result.items()}


def post(url: str, body: bytes, headers: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The answer to a completion request."""
    headers = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(f"{url}/v1/completions", body, headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
        return bytes(response.read())


class Answer(NamedTuple):
    """Times of the events that carried tokens, and the usage."""

    at_s: list[float]
    usage: dict[str, Any]


async def stream(client: aiohttp.ClientSession, url: str, body: bytes) -> Answer:
    """A plain client's view of a streamed completion."""
    at_s, usage = [], {}
    headers = {"Content-Type": "application/json"}
    async with client.post(f"{url}/v1/completions", data=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                if event["choices"]:
                    at_s.append(time.monotonic())
    return Answer(at_s, usage)


@dataclass(frozen=True)
class Server:
    """vLLM's own HTTP server, in a process that may still be starting."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path

    def ready(self) -> "Server":
        """Wait until it answers."""
        until(self._healthy, "vLLM's server never answered", START_S)
        return self

    def _healthy(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        with suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
            return True
        return False

    def counters(self, *names: str) -> list[float]:
        page = urllib.request.urlopen(f"{self.url}/metrics", timeout=30).read().decode()
        return list(counters([page], names).values())


@contextmanager
def serving(
    folder: Path, name: str, log: Path, environment: Mapping[str, str], *words: str
) -> Iterator[Server]:
    """vLLM's own server with a model's folder, for as long as the context is open."""
    with closing(reserved_port()) as port, log.open("wb") as said:
        number = str(port.getsockname()[1])
        argv = [sys.executable, "-m", SERVER, "--model", str(folder), "--served-model-name", name]
        argv += ["--host", LOOPBACK, "--port", number, *words]
        env = {**os.environ, **environment, "HOME": str(log.parent)}
        process = subprocess.Popen(guarded(argv), env=env, stdout=said, stderr=said, start_new_session=True)
        try:
            yield Server(f"http://{LOOPBACK}:{number}", process, log)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def said(script: Sequence[str], environment: Mapping[str, str], home: Path, timeout_s: float = 200) -> Any:
    """The JSON that Python prints after SAID; `script` begins with `-c PROGRAM` or `-m MODULE`."""
    env = {**os.environ, **environment, "HOME": str(home)}
    command = [sys.executable, *script]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    lines = [line for line in ran.stdout.splitlines() if line.startswith("SAID")]
    assert ran.returncode == 0 and lines, ran.stderr[-3000:]
    return json.loads(lines[0].removeprefix("SAID"))
