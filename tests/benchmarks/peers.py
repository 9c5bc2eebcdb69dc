"""What one core carries of other load generators, where they are installed: the rows of `client_rate`.

Each tool is found on PATH or by an environment variable: MAXQPS_BENCH_VLLM, MAXQPS_BENCH_GUIDELLM,
MAXQPS_BENCH_AIPERF. It gets ready prompts of 5600 words, a tokenizer of those words, and all its
processes on one core. CPU counts from the first request to the last token; TTFT and TPOT are the tool's
own figures and count from its send, so its lag is not in them. AIPerf and GuideLLM draw arrivals of
their own: they are behind schedule only if chance does not explain it. A tool of several processes waits
for itself too, so that a low share need not mean neighbours.

`vllm bench serve` is called as the module that it is: the CPU build's distribution has another name, by which
vLLM's command line does not find itself.

python -m tests.benchmarks.peers [--quick]
"""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks._clients import cores, schedstat_ns
from tests.benchmarks._mock import Mock
from tests.benchmarks.client_rate import (
    BEHIND,
    HEAD,
    ITL_MS,
    MODERATE_QPS,
    QUICK_SECONDS,
    SECONDS,
    TOKENS,
    TTFT_MS,
    Row,
    climb,
    compare,
    p90,
)

INPUT_WORDS = 5600
REQUESTS, QUICK_REQUESTS = 300, 120
SAMPLE_S = 0.1
ERROR = re.compile(r"[\w.]+(Error|Exception|NotFound)\b")
LIMIT_S = 180.0
WORDS = [f"{a}{b}{c}{d}" for a in "bdfg" for b in "aeio" for c in "klmn" for d in "aeio"]


VLLM_MAIN = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
VLLM = """
--backend openai --base-url {url} --endpoint /v1/completions --model mock
--tokenizer {folder}/tokenizer --dataset-name custom --dataset-path {folder}/prompts.jsonl
--skip-chat-template --custom-output-len {tokens} --num-prompts {count} --request-rate {rate:g} --ignore-eos
--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,90,99
--save-result --save-detailed --result-dir {folder} --result-filename out.json
--ready-check-timeout-sec 0 --disable-tqdm
"""
AIPERF = """
profile --model-names mock --url {url} --endpoint-type completions --streaming
--tokenizer {folder}/tokenizer --input-file {folder}/prompts.jsonl --custom-dataset-type single_turn
--request-rate {rate:g} --request-rate-mode poisson --request-count {count} --random-seed 1
--extra-inputs ignore_eos:true --extra-inputs max_tokens:{tokens} --use-server-token-count
--ui-type none --no-gpu-telemetry --no-server-metrics --workers-max 1 --record-processor-service-count 1
--output-artifact-dir {folder}/out
"""
GUIDELLM = """
run --backend kind=openai_http,target={url},model=mock,request_format=/v1/completions
--tokenizer kind=hf_auto,model={folder}/tokenizer --profile kind=poisson,rate={rate:g}
--constraint kind=max_requests,count={count} --data kind=json_file,path={folder}/prompts.jsonl
--output kind=json,path={folder}/out.json --disable-console-interactive
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What a tool says of its own run."""

    completed: int
    ttft_ms: float
    tpot_ms: float


def itself(program: str) -> list[str]:
    return [program]


def vllm_module(program: str) -> list[str]:
    """The interpreter beside the program, and what its `bench serve` calls."""
    return [str(Path(program).with_name("python")), "-c", VLLM_MAIN]


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool: its words, a line of its prompt file, and how to read what it wrote into its folder.

    `install` is what to type where it is missing. `noise` is how far the mean rate of its own draw may be
    from the asked one, in standard deviations.
    """

    name: str
    install: str
    words: str
    rates_qps: tuple[float, ...]
    prompt: Callable[[str], dict[str, Any]]
    read: Callable[[Path], Figures]
    launch: Callable[[str], list[str]] = itself
    noise: float = 0.0
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        return f"MAXQPS_BENCH_{self.name.upper()}"


def read_vllm(folder: Path) -> Figures:
    said = json.loads((folder / "out.json").read_text())
    return Figures(said["completed"], said["p90_ttft_ms"], said["p90_tpot_ms"])


def read_guidellm(folder: Path) -> Figures:
    """Its "inter token latency" is what is TPOT here; its "time per output token" includes TTFT."""
    metrics = json.loads((folder / "out.json").read_text())["benchmarks"][0]["metrics"]
    ttft, itl = metrics["time_to_first_token_ms"], metrics["inter_token_latency_ms"]
    return Figures(
        metrics["request_totals"]["successful"],
        ttft["successful"]["percentiles"]["p90"],
        itl["successful"]["percentiles"]["p90"],
    )


def read_aiperf(folder: Path) -> Figures:
    """Its "inter token latency" is what is TPOT here."""
    (path,) = (folder / "out").rglob("profile_export_aiperf.json")
    said = json.loads(path.read_text())
    return Figures(
        int(said["request_count"]["avg"]),
        said["time_to_first_token"]["p90"],
        said["inter_token_latency"]["p90"],
    )


PEERS = (
    Peer(
        name="vllm",
        install="make vllm, .venv-vllm/bin/pip install pandas, and MAXQPS_BENCH_VLLM=.venv-vllm/bin/vllm",
        words=VLLM,
        rates_qps=(60, 80, 100, 130, 160, 200),
        prompt=lambda text: {"prompt": text},
        read=read_vllm,
        launch=vllm_module,
    ),
    Peer(
        name="aiperf",
        install="pip install aiperf==0.13.0 in an environment of its own, DIR/bin/aiperf",
        words=AIPERF,
        rates_qps=(30, 40, 50, 65, 80, 100, 130),
        prompt=lambda text: {"text": text},
        read=read_aiperf,
        noise=3.0,
    ),
    Peer(
        name="guidellm",
        install="pip install guidellm==0.8.1 in an environment of its own, DIR/bin/guidellm; a CPU build of "
        "torch first spares 4 GB",
        words=GUIDELLM,
        rates_qps=(15, 20, 25, 30, 40, 50),
        prompt=lambda text: {"prompt": text, "output_tokens_count": TOKENS},
        read=read_guidellm,
        noise=3.0,
        environment={"GUIDELLM__MAX_WORKER_PROCESSES": "1"},
    ),
)


def write_prompts(path: Path, prompt: Callable[[str], dict[str, Any]], count: int) -> None:
    rng = np.random.default_rng(1)
    rows = (prompt(" ".join(rng.choice(WORDS, INPUT_WORDS))) for _ in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path) -> None:
    """A tokenizer in the usual files whose tokens are the words of the prompts."""
    folder.mkdir()
    words = ["[UNK]", "token", *WORDS]
    model = {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(words)}, "unk_token": "[UNK]"}
    tree = {"version": "1.0", "model": model, "pre_tokenizer": {"type": "Whitespace"}}
    tree |= dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps(tree | {"added_tokens": []}))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "model_max_length": 10**6}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))


@dataclass(frozen=True, slots=True)
class Sample:
    """Nanoseconds that all threads of a tool had run, and had waited for a core, at one instant."""

    at_ns: int
    ran_ns: int
    waited_ns: int


def tree(root: int) -> Iterator[int]:
    """A process and all below it."""
    yield root
    for task in Path(f"/proc/{root}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


@contextmanager
def sampled(root: int) -> Iterator[list[Sample]]:
    """Samples of a tool's use of the core, taken in a thread while the context lasts."""
    samples, over = [], threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            with suppress(OSError):  # a process or thread ended while it was looked at
                used = [schedstat_ns(pid) for pid in tree(root)]
                ran_ns, waited_ns = map(sum, zip(*used, strict=True))
                samples.append(Sample(time.monotonic_ns(), ran_ns, waited_ns))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def used_between(samples: list[Sample], start_ns: int, end_ns: int) -> tuple[float, float]:
    """(CPU seconds, run share) between two instants."""
    at_ns = [sample.at_ns for sample in samples]
    ran, waited = (
        np.ptp(np.interp([start_ns, end_ns], at_ns, values)) / 1e9
        for values in ([s.ran_ns for s in samples], [s.waited_ns for s in samples])
    )
    return float(ran), float(ran / max(1e-9, ran + waited))


def measure(peer: Peer, program: str, rate_qps: float, count: int) -> Row:
    """One tool at one rate, in a folder of its own, against a fresh server."""
    server_core, client_core = cores()
    environment = os.environ | peer.environment | {"HF_HUB_DISABLE_TELEMETRY": "1"}
    pin = [] if client_core is None else ["taskset", "-c", str(client_core)]
    with (
        tempfile.TemporaryDirectory() as name,
        Mock(server_core, ttft_ms=TTFT_MS, itl_ms=ITL_MS, tokens=TOKENS) as mock,
    ):
        folder = Path(name)
        write_prompts(folder / "prompts.jsonl", peer.prompt, count)
        write_tokenizer(folder / "tokenizer")
        words = peer.words.format(url=mock.url, folder=folder, rate=rate_qps, count=count, tokens=TOKENS)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [*pin, *peer.launch(program), *words.split()],
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with sampled(process.pid) as samples:
                ended = _wait(process)
        truth = mock.truth()
        if ended != 0 or not len(truth.read_ns):
            raise RuntimeError(f"exit code {ended}: {_said((folder / 'log').read_text(errors='replace'))}")
        figures = peer.read(folder)
    arrived_ns = np.sort(truth.read_ns)[-count:]
    cpu_s, run_share = used_between(samples, arrived_ns[0], truth.last_ns.max())
    return Row(
        client=peer.name,
        rate_qps=rate_qps,
        count=count,
        failed=count - figures.completed,
        sent=(count - 1) / rate_qps / (np.ptp(arrived_ns) / 1e9),
        cpu_ms=cpu_s / count * 1e3,
        run_share=run_share,
        ttft_ms=figures.ttft_ms,
        true_ttft_ms=p90(truth.ttft_ms),
        tpot_ms=figures.tpot_ms,
        true_tpot_ms=p90(truth.tpot_ms),
        behind=max(BEHIND, peer.noise / math.sqrt(count)),
    )


def _said(log: str) -> str:
    """The last error that a tool told, or its last lines."""
    lines = log.strip().splitlines()
    errors = [line for line in lines if ERROR.match(line)]
    return " | ".join(errors[-1:] or lines[-5:])


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    """The exit code; None, and the process group ended, if it takes too long."""
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def rows(peer: Peer, seconds: float, least: int) -> Iterator[Row]:
    """Rows of one tool up its rates until one is bad; none, and a line why, if it cannot be run."""
    program = shutil.which(os.environ.get(peer.variable, peer.name))
    if program is None:
        print(f"{peer.name:>9} is neither on PATH nor named by {peer.variable}; to have it: {peer.install}")
        return
    for rate_qps in peer.rates_qps:
        try:
            row = measure(peer, str(Path(program).absolute()), rate_qps, max(least, int(rate_qps * seconds)))
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            print(f"{peer.name:>9} {rate_qps:6.0f} did not run: {type(error).__name__}: {error}")
            return
        print(row, flush=True)
        yield row
        if row.faults:
            return


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    seconds, least = (QUICK_SECONDS, QUICK_REQUESTS) if quick else (SECONDS, REQUESTS)
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    print(HEAD)
    found = [list(rows(peer, seconds, least)) for peer in PEERS]
    if any(found):
        ours = list(climb("ours", seconds, from_qps=MODERATE_QPS))
        for theirs in filter(None, found):
            print(compare(ours, theirs))
        print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
