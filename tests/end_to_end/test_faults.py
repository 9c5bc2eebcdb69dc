"""`loadgen.run` when a real run goes wrong: each fault ends in the right rows and the right verdict.

Rows: one for every planned request, none twice, no late burst. The load actors, their node and the driver
are killed; the server refuses, hangs, answers with errors or breaks off; the disk fills; Ctrl-C comes. A
fault strikes once rows of its window are on disk, and its window lasts until the fault is noticed.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from analysis import load_run
from analysis.results import summary
from analysis.results.json_border import to_tree
from analysis.rows import shards
from cluster.ray_session.own_machine import process_of
from conf import Experiment, load
from loadgen.__main__ import main
from loadgen.drive.driver import Driver
from loadgen.drive.programs import sweep
from loadgen.fleet.ray_actors import RayActors
from loadgen.fleet.worker import MISSED_AFTER_NS
from loadgen.run.jobs import Job, SearchCapacity, Service, Site
from loadgen.run.lifecycle import RunLifecycle
from loadgen.run.run_folder import RunFolder
from loadgen.search.window_plan import Start, Stop, WindowPlan
from tests.support import commands
from tests.support.commands import WORDS
from tests.support.machine import tries
from tests.support.machine.patience import PATIENCE_S, until
from tests.support.servers.mock_server import answer, head, serving, sized, token
from tests.support.virtual.virtual_fleet import HoldRate
from tests.support.words.words import over

pytestmark = pytest.mark.live

BOUNDS = ["slo.ttft_p90_ms=600", "slo.tpot_p90_ms=100"]
"""Near what the server needs: the load that first fills a service lasts as long as they allow its answers."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load actor that only waits for its core is not lost; a fast service is soon in steady state.

    A window is looked at each second, so that the loss of a load actor soon ends it.
    """
    monkeypatch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("loadgen.fleet.fleet.READY_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr("loadgen.drive.prepared_load.PIECE_S", 0.5)
    monkeypatch.setattr("loadgen.drive.driver.ABORT_FROM_S", 1.0)
    monkeypatch.setattr("loadgen.drive.driver.ABORT_EVERY_S", 1.0)


def good(body: dict[str, Any]) -> list[bytes | float | None]:
    return answer(body, 0.02)


def run_against(
    tmp_path: Path,
    url: str,
    job: Callable[[Experiment], Job],
    words: list[str] | None = None,
    listener: Callable[..., None] = lambda *_, **__: None,
    **service: Any,
) -> dict[str, Any]:
    """A whole run, whose fleet and folder are real, against `url`; `listener` is told its events."""
    experiment = load(over(WORDS["faults"], *(words or [])))

    @contextlib.contextmanager
    def up() -> Iterator[Service]:
        yield Service([url], **service)

    tmp_path.mkdir(exist_ok=True)
    site = Site(lambda *_: (Start(80.0), None), lambda *_: up())
    run = RunLifecycle(job(experiment), RunFolder.create(tmp_path, "run"), site, listener)
    return to_tree(run.measure())


def measure(tmp_path: Path, url: str, job: Any, words: Any = None, **service: Any) -> tuple[Any, Path]:
    """The same, with what must hold of every run on a disk with room, however it ended."""
    tree, folder = run_against(tmp_path, url, job, words, **service), tmp_path / "run"
    check_rows(folder)
    assert json.loads((folder / "sweep.json").read_text())["exit_code"] == tree["exit_code"]
    return tree, folder


def check_rows(folder: Path) -> Counter[str]:
    """One row for every planned request, none twice, nothing sent in a late burst; returns the statuses."""
    rows = load_run(folder).requests().to_pylist()
    assert len(rows) == len({row["seq"] for row in rows}) == RunFolder.planned_in(folder)
    late = [row["send_offset_ns"] for row in rows if row["send_offset_ns"] is not None]
    assert all(-1_000_000 <= lag <= 2 * MISSED_AFTER_NS for lag in late)
    return Counter(row["status"] for row in rows)


def held(experiment: Experiment) -> Job:
    return HoldRate(experiment, 30.0, 2.5, 0.5)


def until_noticed(experiment: Experiment) -> Job:
    """A held rate whose window is long: only a fault ends it."""
    return HoldRate(experiment, 30.0, PATIENCE_S, 0.5)


searched = SearchCapacity


def answered(folder: Path, index: int) -> int:
    """Number of answers of a window that are on disk."""
    rows = shards.requests(folder).to_pylist()
    ended = ("ok", index, "window")
    return sum((row["status"], row["window_index"], row["phase"]) == ended for row in rows)


def during(folder: Path, index: int, act: Callable[[], object]) -> Callable[..., None]:
    """A listener that acts once, as soon as answers of a window are on disk."""

    def strike() -> None:
        until(lambda: answered(folder, index) > 5)
        act()

    def listen(kind: str, /, **facts: Any) -> None:
        if kind == "window" and facts["index"] == index:
            threading.Thread(target=strike, daemon=True).start()

    return listen


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in load_run(folder).events() if event["event"] == kind]


def actor_pid(folder: Path) -> int:
    return int(json.loads((folder / "manifest.json").read_text())["load_actors"][1]["pid"])


@pytest.mark.ray
def test_a_killed_load_actor_is_replaced_and_its_window_void(ray_session: object, tmp_path: Path) -> None:
    def choose(driver: Driver) -> WindowPlan | Stop:
        """Three windows, of which the second is struck and ends then: a search could end before it."""
        number = len(driver.windows.outcomes)
        if number > 2:
            return Stop("budget", "enough was seen")
        window_s = PATIENCE_S if number == 1 else 4.0
        return WindowPlan(number, "window", 20.0, 1.0, window_s, False, "the rate that was asked")

    class ThreeWindows(SearchCapacity):
        def load(self, driver: Driver) -> None:
            self._stop = sweep(driver, choose)

    def killed(number: int) -> dict[str, Any]:
        out = tmp_path / f"try-{number}"
        listener = during(out / "run", 1, lambda: os.kill(actor_pid(out / "run"), signal.SIGKILL))
        tree: dict[str, Any]
        words, actors = ["search.budget_s=600"], RayActors(0.1)
        tree, folder = measure(out, server.url, ThreeWindows, words, listener=listener, actors=actors)
        assert len(events(folder, "healed")) == 1
        reasons = [window["void_reason"] for window in tree["windows"]]
        assert [reason == "actor_lost" for reason in reasons] == [False, True, False], reasons
        assert check_rows(folder)["ok"] > 10
        return tree

    def others_valid(tree: dict[str, Any]) -> bool:
        return [window["valid"] for window in tree["windows"]] == [True, False, True]

    with serving(good) as server:
        tries.valid(killed, also=("actor_lost",), enough=others_valid)


@pytest.mark.slow
def test_a_load_actor_that_hangs_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        monkeypatch.setattr("loadgen.fleet.fleet.REPLY_TIMEOUT_S", 2.0)
        os.kill(actor_pid(tmp_path / "run"), signal.SIGSTOP)

    with serving(good) as server:
        listener = during(tmp_path / "run", 0, stop)
        tree, _ = measure(tmp_path, server.url, until_noticed, listener=listener)
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_VOID, False)
    assert tree["reason"].startswith("actor_lost")


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_node_takes_its_load_actors_with_it(ray_alone: object, tmp_path: Path) -> None:
    def kill() -> None:
        actor = actor_pid(tmp_path / "run")
        raylet = int(Path(f"/proc/{actor}/stat").read_text().rpartition(")")[2].split()[1])
        for pid in (raylet, actor):
            os.kill(pid, signal.SIGKILL)

    with serving(good) as server:
        nodes = RayActors(0.1, {"label_selector": {"role": "gpu"}})
        listener = during(tmp_path / "run", 0, kill)
        tree, folder = measure(tmp_path, server.url, until_noticed, actors=nodes, listener=listener)
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_VOID, False)
    assert tree["reason"].startswith("actor_lost")
    states = check_rows(folder)
    assert states["lost"] + states["missed"] > 0 < states["ok"]


def refusing(status: str) -> list[bytes | float | None]:
    """An error instead of an answer."""
    return [sized(b'{"error":"busy"}', status)]


@pytest.mark.slow
def test_a_server_that_refuses_everything_is_lost_not_slow(tmp_path: Path) -> None:
    with serving(lambda _: refusing("429 Too Many Requests")) as server:
        tree, folder = measure(tmp_path, server.url, searched)
    assert tree["exit_code"] == summary.EXIT_TARGET
    assert tree["reason"].startswith("warm-up: failed 2 of 2: 2 x http_error 429 (")
    assert '; the first says "busy". ' in tree["reason"] and len(tree["reason"].splitlines()) == 1
    assert set(check_rows(folder)) <= {"http_error", "missed"}


@pytest.mark.slow
def test_errors_and_answers_that_break_off_behind_a_200_count_against_the_bound(tmp_path: Path) -> None:
    def failing(body: dict[str, Any]) -> list[bytes | float | None]:
        """After the warm-up every fourth answer is an error, and the one after it breaks off."""
        number = len(server.requests)
        if number > 2 and number % 4 == 0:
            return refusing("503 Service Unavailable")
        return [head(), token(), None] if number > 2 and number % 4 == 1 else good(body)

    # What never ends says nothing of how long answers last: the bounds say it.
    def probed(number: int) -> dict[str, Any]:
        server.requests.clear()
        return measure(tmp_path / f"try-{number}", server.url, held, BOUNDS)[0]

    with serving(failing) as server:
        tree = tries.valid(probed)
    assert (tree["exit_code"], tree["valid"]) == (summary.EXIT_SLO_MISSED, True)
    assert tree["probe"]["limits"]["ttft"]["ms"]["value"] == "inf"
    states = check_rows(Path(tree["folder"]))
    assert states["http_error"] > 5 and states["truncated"] > 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[Path, int], None]]:
    """Mounts a disk of so many kB at a folder."""
    mounted: list[Path] = []

    def mount(path: Path, size_kb: int) -> None:
        path.mkdir(parents=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(path)]
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("a small disk needs the right to mount one")
        mounted.append(path)

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=False)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


Mount = Callable[[Path, int], None]


@pytest.mark.parametrize(
    "full", ["the load actors' disk", pytest.param("every disk", marks=pytest.mark.slow)]
)
def test_a_full_disk_claims_nothing_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_disk: Mount, full: str
) -> None:
    run = tmp_path / "run"
    disk = run / "shards" if "actors" in full else run
    small_disk(disk, 600)
    monkeypatch.setattr(RunFolder, "create", classmethod(lambda cls, out, name: cls(out / name)))
    with serving(good) as server:
        listener = during(run, 0, lambda: fill(disk))
        tree = run_against(tmp_path, server.url, until_noticed, listener=listener)
    assert not tree["valid"] and tree["exit_code"] in (summary.EXIT_VOID, summary.EXIT_INTERNAL)
    assert "No space left" in tree["reason"] and "\n" not in tree["reason"]
    states = check_rows(run)
    assert states["ok"] > 5 and states["lost"] > 0
    (disk / "filler").unlink()
    assert RunFolder(run).collect().num_rows == RunFolder.planned_in(run)


def started(url: str, tmp_path: Path, budget_s: float, *more: str) -> subprocess.Popen[str]:
    """A sweep as a process of its own, in its second window when this returns.

    It begins without a ramp, which two void steps would end.
    """
    own = [f"target.urls=[{url}]", f"search.budget_s={budget_s}", f"out={tmp_path}", "run=own"]
    words = over(WORDS["faults"], *own, *BOUNDS, "search.start=prediction", "search.expected_qps=20", *more)
    process = commands.begin("loadgen", "sweep", "--json", *words)
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "window" and event["index"] == 1:
            return process
    raise AssertionError("the sweep ended early")


def test_a_killed_driver_leaves_silence_and_a_run_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"

    def resumed(number: int) -> dict[str, Any]:
        code = main(["resume", "--json", str(folder)])
        tree: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert tree["exit_code"] == code
        return tree

    with serving(good) as server:
        process = started(server.url, tmp_path, 14, "search.window_s=6")
        until(lambda: answered(folder, 1), "nothing was answered in the second window")
        process.kill()
        process.wait()
        actors = {actor["pid"] for actor in json.loads((folder / "manifest.json").read_text())["load_actors"]}
        until(lambda: not any(process_of(pid)[1] for pid in actors), "the fleet lives on")
        before = check_rows(folder)
        assert before["ok"] > 10 and before["missed"] > 0, "the fleet fell silent before its plan was over"
        result = tries.valid(resumed)
    assert result["exit_code"] == summary.EXIT_OPEN, "this server has no limit"
    after = check_rows(folder)
    assert after["ok"] > before["ok"] and after["lost"] == before["lost"]
    assert result["power"]["unknown"].startswith("engine=external deploys nothing")
    done = events(folder, "window_done")
    indices = [event["index"] for event in done]
    assert done[0]["void"] or indices.count(0) == 1, "the window before the kill was measured again"
    # A try that a busy machine made void may have measured more windows than the one that counts.
    assert set(range(len(result["windows"]))) <= set(indices) and len(result["windows"]) > 1


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_left")
def test_a_second_ctrl_c_cuts_what_the_first_waits_for(tmp_path: Path) -> None:
    slow, folder = threading.Event(), tmp_path / "own"

    def script(body: dict[str, Any]) -> list[bytes | float | None]:
        return [head(), token(), 600.0] if slow.is_set() else good(body)

    def rows_of(kind: str) -> list[dict[str, Any]]:
        rows = shards.requests(folder).to_pylist()
        return [row for row in rows if row["error_kind"] == kind]

    with serving(script) as server:
        forever = "fleet.request_timeout_s=600", "fleet.drain_s=600", "search.window_s=8"
        process = started(server.url, tmp_path, 60, *forever)
        slow.set()
        sent, retracted = len(server.requests), len(rows_of("retracted"))
        until(lambda: len(server.requests) > sent)
        process.send_signal(signal.SIGINT)
        # What was not due yet is retracted; then it waits for answers, for minutes.
        until(lambda: len(rows_of("retracted")) > retracted, "nothing was retracted")
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        last = process.stdout.read().splitlines()[-1]
        assert process.wait(PATIENCE_S) == json.loads(last)["exit_code"] == summary.EXIT_INTERRUPTED
    check_rows(folder)
    assert rows_of("interrupted")
