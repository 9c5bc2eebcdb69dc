"""`conf.ray_patches`: Ray's version is checked, and Ray still has every name that is patched or imported."""

import re
from pathlib import Path

import pytest
import ray

from cluster.ray_session.own_machine import SessionError
from cluster.ray_session.session import open_session
from conf import ray_patches
from conf.specs.experiment import Cluster

ROOT = Path(__file__).parents[2]
PRIVATE = re.compile(r"^\s*(?:from|import) ray(?:\.\w+)*(?:\._| import .*\b_)", re.MULTILINE)


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
    rooms = ("analysis", "cluster", "conf", "loadgen", "serve_apps")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    assert [path.name for path in files if PRIVATE.search(path.read_text())] == ["ray_patches.py"]
