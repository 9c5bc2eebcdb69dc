"""loadgen/run: whatever goes wrong the folder is whole; who follows a run has its figures."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

from analysis import load_run
from analysis.report.sections import hosts_table
from analysis.results import recount, summary
from analysis.results.json_border import to_tree
from analysis.rows import records
from analysis.stats.estimate import Estimate
from conf import Experiment, load
from conf.host_outage import HostOutage
from loadgen.drive import programs
from loadgen.drive.driver import Driver
from loadgen.fleet.fleet import Member
from loadgen.fleet.load_actor import Place
from loadgen.fleet.process import ClockOffset, limits, wall_less_monotonic_ns
from loadgen.run import lifecycle, progress, run_hosts
from loadgen.run.endpoint import TargetError
from loadgen.run.jobs import Job, SearchCapacity, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.progress import sentence
from loadgen.run.run_folder import RunFolder, without_credentials
from loadgen.search.window_plan import Start
from loadgen.traffic.schedule import NS
from tests.support.runs.live_states import DONE
from tests.support.runs.verdict_trees import text_of
from tests.support.virtual.virtual_fleet import EXPERIMENT, HoldRate, VirtualFleet, service, site

HELD = HoldRate(EXPERIMENT, 3.0, 45, 5)


def measure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: Job | None = None,
    **how: Any,
) -> tuple[dict[str, Any], Path]:
    monkeypatch.setattr(lifecycle, "LoadFleet", VirtualFleet)
    folder = RunFolder.create(tmp_path, "one")
    where = site(Start(8.0, 5.2), **how)
    run = RunLifecycle(job or SearchCapacity(EXPERIMENT), folder, where, lambda *_, **__: None)
    tree = to_tree(run.measure())
    saved = json.loads((folder.path / "sweep.json").read_text())
    assert saved["exit_code"] == tree["exit_code"] and saved["reason"] == tree["reason"]
    assert load_run(folder.path).manifest["files"]["sweep.json"]
    assert text_of(tree) and text_of(saved)
    return tree, folder.path


@pytest.mark.parametrize("leaving", [KeyboardInterrupt(), TargetError("still there"), RuntimeError("odd")])
def test_trouble_while_the_service_goes_down_does_not_undo_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaving: BaseException
) -> None:
    tree, _ = measure(tmp_path, monkeypatch, HELD, leaving=leaving)
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_OK, True)


@pytest.mark.parametrize(
    ("entering", "exit_code", "reason"),
    [
        (KeyboardInterrupt(), summary.EXIT_INTERRUPTED, "before the load began"),
        (TargetError("no replica came up", ["a", "b"]), summary.EXIT_TARGET, "no replica came up"),
        (OSError(28, "No space left on device"), summary.EXIT_INTERNAL, "No space left on device"),
    ],
)
def test_a_service_that_does_not_come_up_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entering: BaseException, exit_code: int, reason: str
) -> None:
    tree, path = measure(tmp_path, monkeypatch, entering=entering)
    assert (tree["exit_code"], tree["valid"], tree["passed"]) == (exit_code, False, False)
    assert reason in tree["reason"] and "\n" not in tree["reason"]
    if isinstance(entering, TargetError):
        assert (path / lifecycle.LAST_WORDS).read_text() == "no replica came up\na\nb\n"
        assert lifecycle.LAST_WORDS in json.loads((path / "manifest.json").read_text())["files"]


@pytest.mark.parametrize(
    ("front_streams", "exit_code"), [(100, summary.EXIT_TARGET), (10_000, summary.EXIT_OK)]
)
def test_more_streams_than_the_proxy_takes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, front_streams: int, exit_code: int
) -> None:
    """What waits in a proxy's queue would be counted as the engine's TTFT."""
    tree, _ = measure(tmp_path, monkeypatch, HELD, front_streams=front_streams)
    assert tree["exit_code"] == exit_code
    assert exit_code == summary.EXIT_OK or "takes 100 of " in tree["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("interrupted", [False, True])
def test_the_end_of_a_simulated_sweep_stores_the_joint_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    engine_kinds: list[str] = []

    def constants(experiment: Experiment, emit: Any) -> Estimate:
        engine_kinds.append(experiment.engine.kind)
        emit("constants", text="drawing")
        if interrupted:
            raise KeyboardInterrupt
        return Estimate(1.0, 0.7, 1.3, 0.75)

    monkeypatch.setattr(lifecycle, "LoadFleet", VirtualFleet)
    folder = RunFolder.create(tmp_path, "one")
    here = Site(lambda *_: (Start(8.0, 5.2), None), lambda *_: service(), constants)
    RunLifecycle(SearchCapacity(EXPERIMENT), folder, here, lambda *_, **__: None).measure()
    found = json.loads((folder.path / "sweep.json").read_text())["capacity"]
    assert engine_kinds == ["simulated"] and "drawing" in (folder.path / "events.jsonl").read_text()
    if interrupted:
        assert found["constants_unknown"] == "interrupted" and found["by_noise"] is None
        return
    assert found["constants"] == {"value": 1.0, "low": 0.7, "high": 1.3, "certified": 0.75}
    assert found["qps_per_node"]["low"] < 0.71 * found["qps_per_node"]["value"]
    assert found["by_noise"]["low"] > 0.8 * found["qps_per_node"]["value"]
    assert recount.recomputed(load_run(folder.path))[1]


def test_an_internal_error_keeps_its_traceback_and_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(SearchCapacity):
        def load(self, driver: Driver) -> None:
            programs.offer_rate(driver, 2.0, 20, 5)
            raise ZeroDivisionError("a bug")

    tree, folder = measure(tmp_path, monkeypatch, Broken(EXPERIMENT))
    assert tree["exit_code"] == summary.EXIT_INTERNAL and "a bug" in tree["reason"]
    assert "ZeroDivisionError" in (folder / "traceback.txt").read_text()
    assert tree["requests"]["rows"] == tree["requests"]["planned"] > 10


def test_no_file_and_no_word_of_a_run_holds_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever says it, and be it a bug of ours: a run is the one place through which all of it leaves."""
    monkeypatch.setenv("MAXQPS_TEST", "sk-from/the+wire")
    words = ["engine=external", "target.urls=[http://127.0.0.1:9]", "target.api_key_env=MAXQPS_TEST"]
    shown: list[str] = []

    def broken(*_: Any) -> Any:
        filling.emit("fault", text="it said sk-from/the+wire", facts=[{"text": "sk-from%2Fthe%2Bwire"}])
        raise ValueError("Invalid header value b'Bearer sk-from/the+wire'")

    folder = RunFolder.create(tmp_path, "one")
    here = Site(broken, lambda *_: service())
    show = lambda kind, **facts: shown.append(f"{kind} {facts}")  # noqa: E731
    filling = RunLifecycle(SearchCapacity(load(words)), folder, here, show)
    tree = to_tree(filling.measure())
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    texts = [*shown, text_of(tree), json.dumps(tree)]
    texts += [path.read_bytes().decode(errors="replace") for path in files]
    assert {"events.jsonl", "sweep.json", "traceback.txt"} <= {path.name for path in files}
    assert not [text for text in texts if "sk-from" in text] and "Bearer [api key]" in tree["reason"]


def test_argv_in_the_manifest_has_no_credentials() -> None:
    assert without_credentials("target.urls=[http://me:secret@host:1/v1]") == "target.urls=[http://host:1/v1]"
    assert without_credentials("slo.ttft_p90_ms=2000") == "slo.ttft_p90_ms=2000"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, dict[str, Any]]]]:
    """The folder of a search whose windows ended before their answers, and the events that were shown."""
    folder = RunFolder.create(tmp_path_factory.mktemp("final"), "one")
    lines: list[tuple[str, dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle, "LoadFleet", VirtualFleet)
        show = lambda kind, /, **facts: lines.append((kind, facts))  # noqa: E731
        RunLifecycle(SearchCapacity(EXPERIMENT), folder, site(Start(8.0, 3.4)), show).measure()
    return folder.path, lines


@pytest.mark.slow
def test_progress_says_how_much_load_is_left(ran: Any) -> None:
    _, told = ran
    left_s = [facts["left_s"] for kind, facts in told if kind == "window"]
    assert left_s == sorted(left_s, reverse=True)
    assert 0 <= left_s[-1] < left_s[0] <= 1.01 * EXPERIMENT.search.budget_s
    line = next(sentence(kind, facts) for kind, facts in told if kind == "window")
    assert re.search(r"; about \d+:\d\d of load left$", line)


@pytest.mark.slow
def test_progress_says_which_figures_are_provisional_and_tells_the_final_ones(ran: Any) -> None:
    folder, told = ran
    lines = [sentence(kind, facts) for kind, facts in told if kind in ("window_done", "window_final")]
    final = [line for line in lines if line.startswith("final figures of window")]
    first = [line for line in lines if ", so far p90 TTFT" in line and ": provisional, " in line]
    rows = load_run(folder).windows().to_pylist()
    assert len(first) == len(final) == len(rows) > 2
    assert not any("so far" in line or "provisional" in line for line in final)
    for line, row in zip(final, rows, strict=True):
        assert f"window {row['index']}: " in line and f"p90 TPOT {row['tpot_p90_ms']:.1f} ms" in line
    assert any(
        f"p90 TPOT {row['tpot_p90_ms']:.1f} ms" not in line for row, line in zip(rows, first, strict=True)
    )


SHIFT_NS = 3 * NS


class Source:
    """Two outages, one of which still lasts."""

    patience_s = 1.0

    def outages(self) -> list[HostOutage]:
        node = HostOutage("node1", "10.0.0.2", True, "timed out", 40 * NS, 52 * NS)
        return [node, HostOutage("load1", "10.0.0.9", False, "timed out", 70 * NS)]


class Fleet:
    """One load actor on a host whose wall clock is 3 s ahead; the run began at 10 s, monotonic."""

    def __init__(self) -> None:
        wall_ns = wall_less_monotonic_ns() + SHIFT_NS
        actor: Any = None
        place = Place(4, "n", "load1", "10.0.0.9", 1, wall_ns, limits())
        self.members = [Member(4, 0, actor, place, ClockOffset(0, 1_000_000), began_ns=11 * NS)]
        self.hosts = Source()

    def now_ns(self) -> int:
        return 90 * NS

    def run_ns(self, monotonic_ns: int) -> int:
        return monotonic_ns - 10 * NS


@pytest.fixture
def fleet() -> Any:
    return Fleet()


def test_outages_are_on_the_runs_clock_with_the_load_actors_of_their_host(fleet: Any) -> None:
    node, load = run_hosts.outages(fleet)
    assert (node.from_ns, node.until_ns, node.loads, node.clients) == (30 * NS, 42 * NS, False, frozenset())
    assert (load.from_ns, load.until_ns, load.loads, load.clients) == (60 * NS, None, True, frozenset({4}))


@pytest.mark.parametrize(
    ("lost_s", "until_s", "clients"), [(75, 65, {4}), (69, None, set())], ids=["in the outage", "before it"]
)
def test_an_outage_matters_until_the_last_load_actor_of_the_host_is_given_up(
    fleet: Any, lost_s: int, until_s: int | None, clients: set[int]
) -> None:
    fleet.members[0].lost_ns = lost_s * NS
    _, load = run_hosts.outages(fleet)
    assert (load.until_ns, load.clients) == (until_s and until_s * NS, clients)
    fleet.members.append(replace(fleet.members[0], client_id=5, began_ns=(lost_s + 1) * NS, lost_ns=None))
    _, load = run_hosts.outages(fleet)
    assert (load.until_ns, load.clients) == (None, {*clients, 5})


def test_the_table_has_role_clock_lost_seconds_and_requests_of_each_host(fleet: Any) -> None:
    rows = pa.Table.from_pylist(
        [{"client_id": 4, "replica_id": replica} for replica in ("r0", "r0", "r1", None)], records.PROGRESS
    )
    replicas = {"r0": {"host": "10.0.0.2"}, "r1": {}}
    node, load = run_hosts.table(fleet, rows, [{"replicas": replicas}, {"replicas": replicas}, {}])
    assert node == {"address": "10.0.0.2", "role": "serves", "requests": 2, "lost_s": 12.0}
    assert (load["name"], load["role"], load["requests"], load["lost_s"]) == ("load1", "load", 4, 30.0)
    assert load["clock_offset_ms"] == pytest.approx(3000, abs=50)
    cells = hosts_table([node, load]).rows
    assert cells[0] == ("10.0.0.2", "serves", "", "12", "2") and cells[1][0] == "load1 10.0.0.9"


def test_plain_lines_say_unknown_and_infinite(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=False) as show:
        show("window_done", **DONE)
        show("warm", text="warm-up: 4 requests, 4 ok")
        show("quiet")
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert "window 3: 5.210 QPS per node, 246 requests" in first
    assert "p90 TTFT inf ms (1.0 % over), p90 TPOT unknown ms (unknown % over)" in first
    assert second.endswith("warm-up: 4 requests, 4 ok")


def test_json_lines_are_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=True) as show:
        show("window_done", **DONE)
    out, err = capsys.readouterr()
    assert json.loads(out) == {"event": "window_done", **DONE, "ttft_p90_ms": "inf"}
    assert err == ""


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.shown(as_json=False, quiet=True) as show:
        show("window_done", **DONE)
        show("warm", text="warm-up")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("size", [(80, 24), (60, 12), (140, 50)])
def test_the_screen_fits_its_terminal(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Console(file=io.StringIO(), width=size[0], height=size[1], force_terminal=True)
    monkeypatch.setattr(progress, "Console", lambda **_: terminal)
    show = progress.LiveScreen()
    with show.live:
        show("prediction", text="the engine model predicts 5.20 [/] [red] " + "and more " * 30)
        for index in range(40):
            show("window_done", **{**DONE, "index": index, "verdict": "over ttft and tpot " * 5})
        lines = show.drawn().plain.splitlines()
    assert len(lines) <= size[1] - 2 and max(map(len, lines)) < size[0]
    assert any(line.startswith(" 39 window") for line in lines) or size[1] < 24
