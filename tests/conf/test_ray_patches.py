"""`conf.ray_patches`: Ray's version is checked, and Ray still has every name that is patched or imported."""

import ast
from pathlib import Path

import pytest
import ray

from cluster.ray_session.placement import SessionError
from cluster.ray_session.session import open_session
from conf import ray_patches
from conf.specs.experiment import Cluster

ROOT = Path(__file__).parents[2]
PRIVATE = ("ray._", "ray.serve._", "ray.llm._")


def test_another_version_of_ray_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_patches.require_ray_version()
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    with pytest.raises(
        SessionError, match=r"Ray 2\.61\.0 is installed.*pip install 'ray\[serve\]==2\.60\.0'"
    ):
        open_session(Cluster("c"), None).__enter__()


def test_patches_are_taken_back() -> None:
    from ray._private import ray_constants
    from ray.serve._private import api, build_app

    def values() -> tuple[object, ...]:
        return build_app.RAY_SERVE_ENABLE_HA_PROXY, api.HTTP_PROXY_TIMEOUT, ray_constants.ENABLE_RAY_CLUSTER

    before = values()
    with (
        ray_patches.haproxy_mode(not before[0]),
        ray_patches.front_start_timeout(7),
        ray_patches.loopback_cluster(),
    ):
        assert values() == (not before[0], 7, False)
    assert values() == before


def test_no_other_file_imports_what_is_private_in_ray() -> None:
    found = []
    for room in ("analysis", "cluster", "conf", "loadgen", "serve_apps"):
        for path in (ROOT / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                name = node.module or "" if isinstance(node, ast.ImportFrom) else ""
                if (
                    name.startswith(PRIVATE)
                    or name == "ray"
                    and {"_private", "_raylet"} & {alias.name for alias in getattr(node, "names", ())}
                ):
                    found.append(path.name)
    assert set(found) == {"ray_patches.py"}
