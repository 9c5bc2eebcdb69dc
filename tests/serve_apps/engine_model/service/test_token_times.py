"""The times of all tokens at 92 seeds: a change of them is a change of the model, and is meant.

python -m tests.serve_apps.engine_model.service.test_token_times     # records them again
"""

import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from conf import load
from loadgen.cli.engine_model import parts
from serve_apps.engine_model import EngineKind
from serve_apps.engine_model.service.service import Replicas, Requests, serve

RECORDED = Path(__file__).parents[3] / "data" / "token_times.csv"
SERVICES = {
    "noisy": ["engine.step_noise_cv=0.05", "engine.drift_sd=0.03", "engine.stall_every_steps=50"],
    "tight": ["engine.num_gpu_blocks=700", "engine.max_num_batched_tokens=512"],
    "ranks": ["layout=dp8_attention_ep8", "engine.max_num_seqs=4"],
    "split": ["layout=2p1d"],
}
SEEDS, REQUESTS = 23, 80


def digests() -> Iterator[str]:
    """Of each service and seed, a checksum of its token times in whole microseconds."""
    for name, words in SERVICES.items():
        kind = EngineKind.of(*parts(load(words)))
        yield from (f"{name},{seed},{digest(kind, seed):08x}" for seed in range(SEEDS))


def digest(kind: EngineKind, seed: int) -> int:
    draw = np.random.default_rng(seed)
    sent_s = np.cumsum(draw.exponential(0.1, REQUESTS))
    prompt, output = draw.integers(1, 3000, REQUESTS), draw.integers(1, 80, REQUESTS)
    shared = np.where(draw.random(REQUESTS) < 0.5, np.minimum(prompt, 640), 0)
    times = serve(kind, Requests(sent_s, [prompt, output, shared]), Replicas(seed=seed), tokens=True)
    return zlib.crc32(np.round(times.token_s * 1e6).astype(np.int64).tobytes())


def test_every_token_comes_when_it_came_before() -> None:
    assert list(digests()) == RECORDED.read_text().split()


if __name__ == "__main__":
    RECORDED.write_text("\n".join(digests()) + "\n")
