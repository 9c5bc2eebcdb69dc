"""The import direction of the house, as a table, checked on the source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = ("conf", "analysis", "serve_apps", "cluster", "loadgen")
ALLOWED = {
    "conf": {"conf"},
    "analysis": {"conf", "analysis"},
    "serve_apps": {"conf", "serve_apps"},
    "cluster": {"conf", "cluster"},
    "loadgen": {"conf", "analysis", "loadgen"},
}
CONFINED = {
    "ray": {
        "cluster/ray_session/session.py",
        "cluster/deployment/deploy.py",
        "cluster/deployment/failure_text.py",
        "cluster/deployment/removal.py",
        "cluster/deployment/serve_state.py",
        "cluster/preflight/preflight.py",
        "cluster/ray_session/up.py",
        "serve_apps/simulated/app.py",
        "serve_apps/simulated/server.py",
        "serve_apps/routing/serve_routers.py",
        "serve_apps/routing/loopback.py",
        "serve_apps/vllm_engine/app.py",
        "serve_apps/vllm_engine/process_server.py",
        "serve_apps/vllm_engine/replica.py",
        "loadgen/fleet/fleet.py",
        "loadgen/fleet/load_actor.py",
    },
    "vllm": {
        "serve_apps/vllm_engine/replica.py",
        "serve_apps/vllm_emulated/executor.py",
        "serve_apps/vllm_emulated/platform.py",
    },
    "torch": {"serve_apps/vllm_emulated/executor.py"},
    "matplotlib": {"analysis/figures/canvas.py", "analysis/notebooks/layouts_compared.py"},
    "omegaconf": {"conf/load.py", "conf/specs/experiment.py"},
    "aiohttp": {
        "loadgen/run/metrics_scraper.py",
        "serve_apps/vllm_engine/forwarding.py",
        "serve_apps/vllm_engine/process_server.py",
    },
    "prometheus_client": {"loadgen/run/metrics_scraper.py"},
}
ROOTS = {"site.py", "feasible.py", "foresight.py", "__main__.py"}
"""Composition roots, the only files that join rooms: in `loadgen`, of a deployed service (site), of what the
engines would refuse (feasible) and of the engine model (foresight)."""
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "manager", "misc")
SOURCES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Dotted names a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[0] for name in imported(path)} & set(ROOMS)
    if path.name not in ROOTS:
        assert ours <= ALLOWED[room], f"{path} imports {ours - ALLOWED[room]}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_imports_stay_where_they_belong(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path)}
    for package, homes in CONFINED.items():
        if package in roots and path.name not in ROOTS:
            assert str(path.relative_to(ROOT)) in homes, f"{path} imports {package}"


def test_engine_model_has_no_clock_and_no_loop() -> None:
    for path in (ROOT / "serve_apps" / "engine_model").glob("*.py"):
        assert not imported(path) & {"time", "asyncio", "threading", "ray"}, path


def test_no_module_is_a_drawer() -> None:
    assert not [path for path in SOURCES if path.stem in FORBIDDEN_NAMES]
