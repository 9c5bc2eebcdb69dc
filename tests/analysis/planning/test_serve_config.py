"""plan --serve-config: the file, its numbers by Little's law, and the plan's page."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from analysis import load_run, planning, report
from analysis.__main__ import grammar
from analysis.acts import _application
from analysis.acts import plan as act
from analysis.planning.serve_scaling import ServeScaling, ServeSettings, mean_life, serve_file
from analysis.results.runs import RunError
from conf import ConfigError, load
from conf.specs.planning import Demand, Margins
from serve_apps.__main__ import main as render
from serve_apps.vllm_engine.config_file import OUR_BUILDER
from tests.support.words.words import TABLES

GOLDEN = Path(__file__).parents[2] / "data" / "golden_run"
WORDS = [str(GOLDEN), "plan.scale_up_minutes=5"]
CONFIG = {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 2.0}
SCALING = ServeScaling(CONFIG, ["a test"])


def planned(out: Path, *words: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan's tree and the file of the words."""
    file, tree = out / "serve.yaml", out / "plan.json"
    options = grammar("plan").parse_args([*WORDS, *words, "--serve-config", str(file), "--out", str(tree)])
    assert act(options) == 0
    return json.loads(tree.read_text()), yaml.safe_load(file.read_text())


def test_the_file_holds_what_littles_law_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree, file = planned(tmp_path, "demand.peak_qps=30", "demand.mean_qps=15")
    [application] = file["applications"]
    [deployment] = application["deployments"]
    config = deployment["autoscaling_config"]
    certified = tree["planned_on"]["qps_per_node"]["certified"]
    life, _ = mean_life(load_run(GOLDEN), 0.85 * certified, certified)
    assert config["target_ongoing_requests"] == pytest.approx(0.85 * certified * life.value, rel=1e-3)
    assert config["max_replicas"] == tree["nodes"]
    assert 1 <= config["min_replicas"] < config["max_replicas"]
    assert config["upscale_delay_s"] == 30 and config["downscale_delay_s"] == 600
    assert application["import_path"] == "serve_apps.simulated.app:application"
    assert file["http_options"] == {"host": "127.0.0.1", "keep_alive_timeout_s": 600}
    assert file["proxy_location"] == "HeadOnly"
    assert (
        "\n# export RAY_SERVE_HAPROXY_BALANCE_ALGORITHM=leastconn\n" in (tmp_path / "serve.yaml").read_text()
    )
    assert tree["into_service"]["autoscaling_config"] == config
    assert f"to {config['max_replicas']} engines, " in capsys.readouterr().out


def test_the_quietest_hour_gives_the_fewest_engines(tmp_path: Path) -> None:
    hours = tmp_path / "day.csv"
    hours.write_text(",".join(["0.1"] * 12 + ["25"] * 12))
    tree, file = planned(tmp_path, f"demand.hourly={hours}")
    config = file["applications"][0]["deployments"][0]["autoscaling_config"]
    assert config["min_replicas"] == min(tree["day"]["nodes"]) < max(tree["day"]["nodes"])
    assert config["max_replicas"] == tree["nodes"]


def test_a_real_engine_has_room_for_autoscaling_instead_of_a_number() -> None:
    application, _ = _application(load(["engine=vllm", "cluster.session=fake", "layout=dp2_tp4_ep4"]))
    assert application["import_path"] == OUR_BUILDER
    [config] = application["args"]["llm_configs"]
    assert config["deployment_config"]["autoscaling_config"] == {}
    assert "num_replicas" not in config["deployment_config"]


@pytest.mark.parametrize("routing", ["leastconn", "client_side", "bounded_hash"])
def test_the_file_of_a_real_engine_has_all_that_its_rendering_has(
    routing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster.session=fake", "layout=dp2_tp4_ep4", "workload=chat_sessions", f"routing={routing}"]
    assert render(["render", *words, "--json"]) == 0
    rendered = json.loads(capsys.readouterr().out)
    application, front = _application(load(["engine=vllm", *words]))
    expected = rendered["ray_serve"]
    text = serve_file(SCALING, application, "a test", front)
    file = yaml.safe_load(text)
    assert {key: value for key, value in file.items() if key != "applications"} == {
        key: value for key, value in expected.items() if key != "applications"
    }
    assert file["applications"][0]["import_path"] == expected["applications"][0]["import_path"]
    exported = dict(re.findall(r"^# export (\w+)=(.*)$", text, re.MULTILINE))
    assert exported == rendered["ray_serve_environment"]
    assert set(front.notes) <= set(rendered["notes"])
    flat = " ".join(line.removeprefix("#").strip() for line in text.splitlines())
    assert front.notes and all(f"note: {note}" in flat for note in front.notes)


@pytest.mark.parametrize("words", [["layout=1p1d_tp4_ep4"], ["engine=vllm", "layout=1p1d_tp4_ep4"]])
def test_a_split_layout_has_no_such_file(words: list[str]) -> None:
    with pytest.raises(ConfigError, match="alike and alone"):
        _application(load(["cluster.session=fake", *words]))


@pytest.mark.parametrize(("words", "says"), TABLES["plans without a file for Serve"])
def test_what_a_file_would_lack_is_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises((RunError, ConfigError), match=says):
        given = [str(GOLDEN) if word == "RUN" else word for word in words]
        act(grammar("plan").parse_args(["--serve-config", str(tmp_path / "serve.yaml"), *given]))
    assert not list(tmp_path.iterdir())


def test_a_plan_has_a_page_of_its_own(tmp_path: Path) -> None:
    out = tmp_path / "plan.html"
    assert act(grammar("plan").parse_args([*WORDS, "demand.peak_qps=30", "--out", str(out)])) == 0
    page = out.read_text()
    assert "default-src 'none'" in page and "<script" not in page and "src=" not in page
    assert "30 QPS at the peak" in page and 'id="figure-nodes"' in page
    assert "--serve-config FILE.yaml writes" in page
    with pytest.raises(RunError, match="exists"):
        act(grammar("plan").parse_args([*WORDS, "demand.peak_qps=30", "--out", str(out)]))


@pytest.mark.slow
def test_the_page_has_the_settings_and_no_markup_of_a_run(tmp_path: Path) -> None:
    made = planning.plan(load_run(GOLDEN), Demand(peak_qps=30.0), Margins())
    named = replace(made.planned_on, name="<script>alert(1)</script>")
    settings = ServeSettings("<b>", CONFIG)
    report.write_plan(replace(made, planned_on=named, into_service=settings), tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "<script" not in page and "<b>" not in page and "&lt;script&gt;" in page
    assert "min_replicas" in page and "autoscaling in &lt;b&gt;" in page


def test_a_refused_plan_has_a_page_that_plans_nothing(tmp_path: Path) -> None:
    refused = planning.NoPlan(exit_code=4, reason="the <b>run is void")
    report.write_plan(refused, tmp_path / "plan.html")
    page = (tmp_path / "plan.html").read_text()
    assert "VOID" in page and "The &lt;b&gt;run is void." in page and "<svg" not in page
