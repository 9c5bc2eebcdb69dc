"""`make dist`: the wheel holds the data of every package, and runs in an empty environment."""

import fnmatch
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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
        ran = subprocess.run(
            [str(bin_ / "maxqps"), *words.split()],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ran.returncode == 0 and expected in ran.stdout, ran.stderr
    where = "import loadgen; print(loadgen.__file__)"
    told = subprocess.check_output([str(bin_ / "python"), "-c", where], cwd=tmp_path, env=env, text=True)
    assert told.startswith(str(tmp_path / "fresh"))
