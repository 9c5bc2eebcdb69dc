"""Commands of tests: words of data/run_words.yaml, and `python -m` from the root of the checkout."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
TEXTS: dict[str, str] = yaml.safe_load((ROOT / "tests" / "data" / "run_words.yaml").read_text())
WORDS = {name: text.split() for name, text in TEXTS.items()}


def run(*words: str, timeout: float = 600, **more: Any) -> "subprocess.CompletedProcess[str]":
    """What becomes of `python -m` with these words."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, **more)


def begin(*words: str, **more: Any) -> "subprocess.Popen[str]":
    """The same as a process, of which stdout is to be read."""
    command = [sys.executable, "-m", *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **more)
