"""Preflight: what tools and kernel files say, as captured, and how it is judged."""

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cluster.preflight import gpus as gpu_facts
from cluster.preflight import node_facts
from cluster.preflight.checks import Expected, Finding, InspectedNode, compare, environments, table
from cluster.preflight.gpus import Gpu
from cluster.preflight.judges import check_node
from cluster.ray_session.own_machine import MOST_STREAMS
from tests.support.machine.node_files import CASES, GIB, HBM, HEALTHY, install_amdsmi, write

MI325X = Expected(
    "vllm",
    nodes=2,
    gpus_per_node=8,
    hardware="MI325X",
    arch="gfx942",
    hbm_bytes=HBM,
    model_path="/models/qwen",
)
LAPTOP = Expected("simulated", nodes=1, gpus_per_node=8, hardware="MI325X", arch="gfx942")

KFD_GPU = """cpu_cores_count 0
simd_count 1216
gfx_target_version 90402
vendor_id 4098
device_id 29861
drm_render_minor {minor}
fw_version 192
"""


def kfd_tree(root: Path, gpus: int) -> None:
    """One CPU and `gpus` GPUs in the kernel's tree, each linked by XGMI to the others."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    write(root, {f"{nodes}/0/properties": "cpu_cores_count 96\nsimd_count 0\n"})
    for node in range(1, gpus + 1):
        peers = [0, *(peer for peer in range(1, gpus + 1) if peer != node)]
        for at, peer in enumerate(peers):
            link = f"type {11 if peer else 2}\nnode_from {node}\nnode_to {peer}\n"
            write(root, {f"{nodes}/{node}/io_links/{at}/properties": link})
        card = f"sys/class/drm/renderD{127 + node}/device"
        facts = {
            f"{nodes}/{node}/properties": KFD_GPU.format(minor=127 + node),
            f"{card}/mem_info_vram_used": "297000000\n",
            f"{card}/mem_info_vram_total": f"{HBM}\n",
            f"{card}/numa_node": f"{node // 5}\n",
            f"{card}/ras/umc_err_count": "ue: 0\nce: 3\n",
        }
        write(root, facts)
    write(root, {"sys/module/amdgpu/version": "6.12.12\n"})


def test_the_kernel_reports_every_gpu(tmp_path: Path) -> None:
    kfd_tree(tmp_path, 8)
    result = gpu_facts.read_gpus(tmp_path)
    assert result is not None
    peers = frozenset({0, 1, 2, 4, 5, 6, 7})
    assert result[3] == Gpu(3, None, "gfx942", "6.12.12", 297e6, 0, 192, 0, peers, HBM)
    assert [gpu.numa_node for gpu in result] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_links_that_the_kernel_hides_are_unknown_and_not_missing(tmp_path: Path) -> None:
    kfd_tree(tmp_path, 2)
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/1/io_links")
    result = gpu_facts.read_gpus(tmp_path)
    assert result is not None
    assert [gpu.links for gpu in result] == [None, frozenset({0})]


@pytest.mark.parametrize(
    ("handles", "names"),
    [
        ([{"asic": {"market_name": "AMD Instinct MI325X"}}, {}], ["AMD Instinct MI325X", None]),
        ([{"asic": {"market_name": "N/A"}}, {"asic": {}}], [None, None]),
        (
            [{"asic": {"market_name": "AMD Instinct MI325X"}}] * 3,
            [None, None],
        ),  # not all are in the container
    ],
)
def test_the_module_amdsmi_names_the_gpus(
    handles: list[dict[str, Any]], names: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kfd_tree(tmp_path, 2)
    install_amdsmi(monkeypatch, handles)
    assert [gpu.name for gpu in gpu_facts.read_gpus(tmp_path) or ()] == names
    install_amdsmi(monkeypatch, handles, has_driver=False)
    assert [gpu.name for gpu in gpu_facts.read_gpus(tmp_path) or ()] == [None, None]


def test_no_driver_is_no_gpu_and_a_driver_with_hidden_gpus_is_unknown(tmp_path: Path) -> None:
    assert gpu_facts.read_gpus(tmp_path) == ()
    write(tmp_path, {"sys/class/kfd/kfd/topology/generation_id": "2"})
    assert gpu_facts.read_gpus(tmp_path) is None


def test_kernel_settings_are_read_and_what_is_missing_is_none(tmp_path: Path) -> None:
    assert set(node_facts.kernel_facts(tmp_path).values()) == {None}
    cpu, node = "sys/devices/system/cpu/cpu", "sys/devices/system/node/node"
    tree = {
        f"{cpu}0/cpufreq/scaling_governor": "performance\n",
        f"{cpu}1/cpufreq/scaling_governor": "powersave\n",
        f"{cpu}0/cpuidle/state0/name": "POLL\n",
        f"{cpu}0/topology/physical_package_id": "0\n",
        f"{cpu}1/topology/physical_package_id": "1\n",
        f"{node}0/cpulist": "0\n",
        f"{node}1/cpulist": "1\n",
        f"{node}2/cpulist": "\n",
        "sys/devices/system/cpu/smt/active": "1\n",
    }
    write(tmp_path, tree)
    facts = node_facts.kernel_facts(tmp_path)
    assert (facts["CPU governor"], facts["NUMA nodes"], facts["SMT"]) == ("performance, powersave", 1, "on")
    assert facts["CPU sleep state C2"] is None, "the host of a VM decides"
    for state in (1, 2):
        write(tmp_path, {f"{cpu}0/cpuidle/state{state}/name": f"C{state}\n"})
        write(tmp_path, {f"{cpu}0/cpuidle/state{state}/disable": "0\n"})
    assert node_facts.kernel_facts(tmp_path)["CPU sleep state C2"] == "on"
    write(tmp_path, {f"{cpu}0/cpuidle/state2/disable": "1\n"})
    assert node_facts.kernel_facts(tmp_path)["CPU sleep state C2"] == "off"


def test_the_most_used_memory_counts_and_is_unknown_if_a_gpu_does_not_report_it() -> None:
    gpus = [replace(HEALTHY.gpus[0], vram_used_bytes=used) for used in (GIB, 3 * GIB)]  # type: ignore[index]
    assert node_facts.gpu_facts(gpus)["VRAM"] == 3
    assert node_facts.gpu_facts([*gpus, replace(gpus[0], vram_used_bytes=None)])["VRAM"] is None


@pytest.mark.parametrize(
    ("reported", "streams"), [("26000", 26000), ("4000", 4000), ("all", 4096), (None, 4096)]
)
def test_a_front_has_rays_streams_unless_the_variable_says_more(reported: str | None, streams: int) -> None:
    env = {"RAY_SERVE_HAPROXY_MAXCONN": reported} if reported else {}
    assert node_facts.process_facts(env, 0)["HAProxy's streams"] == streams


def test_chrony_tells_its_offset_only_when_it_is_synchronised() -> None:
    tracking = "System time     : 0.000012345 seconds slow of NTP time\nLeap status     : {}\n"
    assert node_facts.ntp_offset_ms(tracking.format("Normal")) == pytest.approx(0.012345)
    assert node_facts.ntp_offset_ms(tracking.format("Not synchronised")) is None
    assert node_facts.ntp_offset_ms(None) is None


def test_the_image_is_told_by_the_environment_or_podman(tmp_path: Path) -> None:
    assert node_facts.image_digest(tmp_path, {}) is None
    write(tmp_path, {"run/.containerenv": 'engine="podman-5"\nimageid="ab12"\n'})
    assert node_facts.image_digest(tmp_path, {}) == "ab12"
    assert node_facts.image_digest(tmp_path, {"MAXQPS_IMAGE_DIGEST": "sha256:9"}) == "sha256:9"


def test_weights_are_sized_and_digested_and_their_absence_is_explained(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": "{}"})
    why, digest = node_facts.weights(tmp_path)
    assert why == f"no weights in {tmp_path}" and digest is None
    for part, gib in enumerate((1, 2)):
        with (tmp_path / f"model-{part}.safetensors").open("wb") as file:
            file.truncate(gib * GIB)
    size, digest = node_facts.weights(tmp_path)
    assert size == "3.0 GiB in 2 files" and digest
    write(tmp_path, {"config.json": '{"other": "revision"}'})
    assert node_facts.weights(tmp_path)[1] not in (digest, None)
    why, digest = node_facts.weights(tmp_path / "absent")
    assert "No such file" in why and digest is None


def test_secrets_and_devices_are_not_compared_and_no_value_is_told() -> None:
    env = {"VLLM_API_KEY": "s3cret", "HIP_VISIBLE_DEVICES": "0", "NCCL_MIN_NCHANNELS": "112", "HOME": "/root"}
    told = node_facts.environment(env)
    assert list(told) == ["NCCL_MIN_NCHANNELS"]
    assert "112" not in told.values()


TORCH = """import os
class cuda:
    device_count = staticmethod(lambda: len(os.environ["HIP_VISIBLE_DEVICES"].split(",")))
class ones:
    def __init__(self, size, device): assert os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    item = lambda self: 1.0
"""


def test_each_gpu_is_used_alone_and_one_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"torch.py": TORCH})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert gpu_facts.visible_devices(["0", "1", "9"]) == {"0": 1, "1": 1, "9": None}


SEEN = InspectedNode(
    "10.0.0.1", "gpu", 8.0, False, HEALTHY, (2e-5, 3e-4), dict.fromkeys(map(str, range(8)), 1)
)


Facts = Mapping[str, Any]
NONE: Facts = MappingProxyType({})


def findings(node: InspectedNode, expected: Expected = MI325X) -> dict[str, Finding]:
    result = [check_node(check, node, expected) for check in table("nodes")]
    return {finding.check: finding for finding in result if finding is not None}


def differing(
    facts: Facts = NONE,
    gpu: Facts = NONE,
    every: Facts = NONE,
    count: int = 8,
    host: Facts = NONE,
    **node: Any,
) -> InspectedNode:
    """The healthy node, but for these facts and fields: of GPU 0, of every GPU, of the host, of the node."""
    first, *others = (replace(each, **every) for each in HEALTHY.gpus or ())
    gpus = (replace(first, **gpu), *others)[:count]
    changed = {"facts": {**HEALTHY.facts, **facts}, "gpus": gpus, **host}
    return replace(SEEN, host=replace(HEALTHY, **changed), **node)


def test_a_healthy_node_passes_everything() -> None:
    assert {(finding.status, finding.remedy) for finding in findings(SEEN).values()} == {("pass", "")}


@pytest.mark.parametrize(
    ("check", "status", "remedy", "how"), CASES["differing"].values(), ids=CASES["differing"]
)
def test_a_node_that_differs_is_told_with_its_remedy(
    check: str, status: str, remedy: str, how: dict[str, Any]
) -> None:
    finding = findings(differing(**how))[check]
    assert (finding.status, finding.node) == (status, "10.0.0.1")
    assert remedy in finding.remedy


def test_weights_that_are_not_there_are_told_with_their_reason() -> None:
    bare = differing({"weights equal": None}, host={"weights": "no weights in /models"})
    finding = findings(bare)["weights"]
    assert (finding.status, finding.figure) == ("fail", "no weights in /models")
    unnamed = findings(SEEN, replace(MI325X, model_path=""))["weights"]
    assert unnamed.status == "unknown" and "engine.model_path is empty" in unnamed.figure


def test_a_front_that_queues_is_told_in_a_joined_cluster() -> None:
    head = differing({"HAProxy's streams": MOST_STREAMS - 1}, is_head=True)
    finding = findings(head, replace(MI325X, http_port=8000))["HAProxy's streams"]
    assert finding.status == "warn" and f"RAY_SERVE_HAPROXY_MAXCONN={MOST_STREAMS}" in finding.remedy
    enough = differing({"HAProxy's streams": MOST_STREAMS}, is_head=True)
    assert findings(enough, replace(MI325X, http_port=8000))["HAProxy's streams"].status == "pass"
    assert "HAProxy's streams" not in findings(head)


def test_a_laptop_without_gpus_is_told_what_it_could_not_check_and_fails_nothing() -> None:
    bare = dict.fromkeys(HEALTHY.facts) | {"python": "3.11", "ray": "2.60.0", "maxqps": "0.1.0"}
    bare |= {"open files": 1024, "NUMA balancing": 1, "/dev/shm": GIB}
    node = differing(bare, count=0, host={"amdsmi": False}, devices=None)
    status_of = findings(node, LAPTOP)
    of_gpus = {check.name for check in table("nodes") if check.where == "gpu"} | {"GPUs", "GPUs in Ray"}
    assert {status_of[name].status for name in of_gpus} == {"unknown"}
    assert (status_of["open files"].status, status_of["NUMA balancing"].status) == ("warn", "warn")
    assert status_of["/dev/shm"].status == "pass"
    assert "fail" not in {found.status for found in status_of.values()}
    small = differing({**bare, "disk of Ray's folder": 4.0, "/dev/shm": 64 * 2**20}, count=0)
    status_of = findings(small, LAPTOP)
    assert (status_of["/dev/shm"].status, status_of["disk of Ray's folder"].status) == ("warn", "warn")
    together = {found.check: found for found in compared([node], LAPTOP)}
    assert together["vllm"].status == together["ROCm"].status == together["image"].status == "unknown"
    assert together["ray"].status == "pass"


def test_the_halves_of_eight_gpus_are_asked_of_eight_gpus_only() -> None:
    two = differing(count=2)
    assert "NUMA node of GPUs" not in findings(two, replace(MI325X, gpus_per_node=2))


@pytest.mark.parametrize("read", [None, ()], ids=["a driver", "no driver in sight"])
def test_gpus_that_are_not_amds_are_unknown_and_get_none_of_amds_advice(read: tuple[()] | None) -> None:
    bad = {"CPU sleep state C2": "on", "SMT": "on", "NUMA nodes": 4.0}
    node = differing(bad, host={"gpus": read, "amdsmi": False})
    status_of = findings(node, replace(MI325X, hardware="H200 SXM", arch=""))
    assert {status_of[name].status for name in ("GPUs", "GPUs in Ray", "VRAM")} == {"unknown"}
    assert status_of["GPUs"].figure == "only AMD's GPUs are read"
    assert not {"CPU sleep state C2", "SMT", "NUMA nodes", "MEC firmware", "XGMI links"} & set(status_of)


def test_load_nodes_are_asked_only_for_what_concerns_them() -> None:
    role = {"name": "10.0.0.9", "role": "load", "ray_gpus": 0.0, "is_head": True}
    load_node = differing(count=0, **role)
    status_of = findings(load_node, replace(MI325X, http_port=8000))
    wanted = {"clock", "chrony", "open files", "listen backlog", "disk of Ray's folder", "Serve's HTTP port"}
    assert set(status_of) == wanted | {"HAProxy's streams"}
    taken = differing({"Serve's HTTP port": "taken"}, **role)
    assert findings(taken, replace(MI325X, http_port=8000))["Serve's HTTP port"].status == "fail"


def compared(nodes: list[InspectedNode], expected: Expected = MI325X) -> list[Finding]:
    result = [compare(check, nodes, expected) for check in table("across")]
    return [finding for finding in [*result, environments(nodes)] if finding is not None]


def other(node: InspectedNode = SEEN) -> InspectedNode:
    return replace(node, name="10.0.0.2")


def test_equal_nodes_agree() -> None:
    assert {found.status for found in compared([SEEN, other()])} == {"pass"}


@pytest.mark.parametrize(
    ("node", "check", "figure"),
    [
        (differing({"ray": "2.59.0"}), "ray", "2.59.0 on 10.0.0.2; 2.60.0 on 10.0.0.1"),
        (differing({"vllm": None}), "vllm", "nothing on 10.0.0.2"),
        (differing({"image": "sha256:2"}), "image", "sha256:2 on 10.0.0.2"),
        (differing({"weights equal": "digest old"}), "weights equal", "digest old on 10.0.0.2"),
        (differing(host={"environment": {}}), "environment", "NCCL_MIN_NCHANNELS differ"),
        (differing({"GPUs equal": None}), "GPUs equal", "nothing on 10.0.0.2"),
    ],
)
def test_nodes_that_differ_fail_and_say_where(node: InspectedNode, check: str, figure: str) -> None:
    failed = {found.check: found for found in compared([SEEN, other(node)]) if found.status == "fail"}
    assert set(failed) == {check}
    assert figure in failed[check].figure
    assert failed[check].remedy


def test_a_real_engine_needs_vllm_and_a_simulated_one_does_not() -> None:
    node = differing({"vllm": None})
    for expected, status in ((MI325X, "fail"), (LAPTOP, "unknown")):
        assert {found.check: found.status for found in compared([node], expected)}["vllm"] == status
