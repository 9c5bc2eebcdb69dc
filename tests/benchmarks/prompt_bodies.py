"""Bodies of 5600 tokens per second and core: synthetic, and of a tokenizer's real text beside them.

    python -m tests.benchmarks.prompt_bodies [FOLDER]

FOLDER is a model's, with its tokenizer.json, and needs the package `tokenizers`; without one only synthetic
prompts are made.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from conf import load
from loadgen.prompts.bodies import Prompts
from loadgen.prompts.tokenizer import Tokenizer

TOKENS, OUTPUT, BODIES = 5600, 140, 3000
KINDS = ("token_ids", "text", "chat")
LEVELS = (400, 1600, 100)


def prompts(kind: str, talks: bool, folder: str) -> tuple[Prompts, float]:
    """Prompts of a kind, and the CPU seconds that it took to make them ready."""
    words = ["engine=vllm", f"workload.prompt={kind}"]
    words += ["workload=character"] if talks else []
    words += [f"workload.tokenizer={folder}"] if folder else []
    asked = load(words)
    began = time.process_time()
    return Prompts(asked.workload, "m", asked.model.vocab, salt=1), time.process_time() - began


def bodies(made: Prompts, talks: bool) -> Iterator[bytes]:
    for i in range(BODIES):
        if talks:
            yield made.turn(TOKENS, OUTPUT, LEVELS, (i % 50, i, 4096 * (i % 3)))
        else:
            yield made.body(i, TOKENS, OUTPUT)


def per_second(made: Prompts, talks: bool) -> float:
    """Bodies per CPU second, the best of three rounds."""
    best = 0.0
    for _ in range(3):
        began, count = time.process_time(), sum(1 for _ in bodies(made, talks))
        best = max(best, count / (time.process_time() - began))
    return best


def counted_again(made: Prompts, talks: bool, tokenizer: Tokenizer) -> tuple[int, int]:
    """The least and the most tokens beyond the planned ones when the text of a body is encoded once more."""
    beyond = []
    for number, body in enumerate(bodies(made, talks)):
        if number % 15 == 0:
            text = json.loads(body)["prompt"]
            beyond.append(len(tokenizer.encode(text)) - TOKENS)
    return min(beyond), max(beyond)


def main(folder: str) -> None:
    for talks in (False, True):
        for kind in KINDS:
            plain, ready_s = prompts(kind, talks, "")
            base = per_second(plain, talks)
            name = f"{'conversation' if talks else 'unique'} {kind}"
            print(f"{name:<24} synthetic {base:8.0f}/s, ready in {ready_s:.2f} s", end="")
            if folder:
                real, ready_s = prompts(kind, talks, folder)
                rate = per_second(real, talks)
                print(f"; real text {rate:8.0f}/s ({rate / base:.2f}), ready in {ready_s:.2f} s", end="")
                if kind == "text":
                    least, most = counted_again(real, talks, Tokenizer(Path(folder)))
                    print(f"; encoded again {least:+d} to {most:+d} tokens", end="")
            print()
    print(f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
