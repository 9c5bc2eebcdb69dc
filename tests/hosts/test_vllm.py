"""Real vLLM on a host of its own, loaded from another one, in the environment of `make vllm`."""

import pytest

from analysis import load_run
from tests.hosts.conftest import running
from tests.hosts.runs import GOES_ON, measure
from tests.support.machine.patience import BUSY
from tests.support.words.words import WORDS, over

pytestmark = [pytest.mark.hosts, pytest.mark.vllm, pytest.mark.slow]


def test_vllm_answers_another_host(tmp_path_factory: pytest.TempPathFactory) -> None:
    deployed = [word for word in WORDS if not word.startswith("search.")]
    words = over(deployed, "cluster=mi325x_1n", "slo.ttft_p90_ms=3000", "slo.tpot_p90_ms=500")
    units, render = tmp_path_factory.mktemp("units"), [*words, "--load-nodes=1"]
    with running(units, render, {11: "node1"}, {21: "load1"}) as cluster:
        load = ("rate_qps=3", "duration_s=8")
        ended = measure(cluster, "vllm", "probe", [*words, *load], lambda _: None)
    assert ended.code in GOES_ON and ended.is_whole() and set(ended.reasons) <= set(BUSY), ended.said
    (replica,) = ended.manifest["server"]["replicas"].values()
    assert replica["host"] == "10.88.0.11" and replica["told"]["engine"], "vLLM's own settings, read back"
    assert [actor["host"] for actor in ended.manifest["load_actors"]] == ["load1"]
    rows = load_run(ended.folder).requests()
    assert set(rows["status"].to_pylist()) <= {"ok", "missed"} and "ok" in rows["status"].to_pylist()
