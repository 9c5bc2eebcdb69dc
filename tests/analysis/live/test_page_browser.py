"""analysis.live.server in a real browser: it follows a growing folder, asks nobody else, can be read."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from analysis.live.address import Address
from analysis.live.followed import look
from analysis.live.server import LiveServer, serving
from analysis.live.state import FILE, Ending, LiveState, LiveView
from analysis.results.json_border import to_tree
from tests.support.machine import browser as chromium
from tests.support.machine.browser import Browser
from tests.support.machine.patience import until
from tests.support.runs.golden import GOLDEN
from tests.support.runs.live_states import LINES, RUNNING, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium.PATH is None, reason="no Chromium on the PATH: make browser installs one"),
]
PHONE, DESKTOP = (360, 800), (1280, 900)
WIDTHS = "[innerWidth, document.documentElement.scrollWidth]"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@contextmanager
def served(state: LiveState) -> Iterator[LiveServer]:
    with serving(Address.from_words("0", "--live"), LiveView(state), "--live") as server:
        yield server


@pytest.fixture
def server() -> Iterator[LiveServer]:
    with served(running()) as server:
        yield server


@pytest.fixture
def page(tab: Browser, server: LiveServer) -> Browser:
    """The page of a run with a window that runs, on a desktop."""
    tab.asked.clear()
    tab.complaints.clear()
    tab.screen(*DESKTOP)
    tab.open(server.address.url)
    until(lambda: tab.text("#link") == "live")
    return tab


def test_a_running_window_is_shown_and_called_provisional(page: Browser) -> None:
    assert "window 7" in page.text("h1")
    now = page.text("#now")
    assert "Window 8. Provisional: 33 % of its requests are still unanswered" in now
    for words in ("0:17 of 0:30", "5:30 of 5:45, 0:15 left", "3.310", "3.270", "40 answered, 20 pending"):
        assert words in now
    assert "4.2 ms" in now and "gate 20 ms" in now
    assert page.text("#bounds").splitlines() == [
        "TTFT p90\t2000\t512\t1235\t3.4 %\t58",
        "TPOT p90\t100\t61.2\t103.4 (over)\t12.2 %\t41",
    ]
    assert "Provisional, after 8 window(s); limited by TPOT" in page.text("#belief-note")
    assert "3.18 to 3.54" in page.text("#belief")
    assert len(page.text("#windows").splitlines()) >= 8 and "over tpot" in page.text("#windows")
    assert "No window of 8 is void." in page.text("#checks")
    assert page.value("document.querySelectorAll('svg[role=img][aria-label]').length") == 2
    assert not page.complaints


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_it_can_be_read_on_every_screen(
    page: Browser, server: LiveServer, tmp_path: Path, size: tuple[int, int], dark: bool
) -> None:
    page.screen(*size, dark)
    for _ in ("running", "ended"):
        assert page.value(WIDTHS) == [size[0], size[0]], "nothing scrolls sideways"
        palest = page.value(chromium.PALEST)
        assert palest[0][0] >= 4.5, palest
        ground = page.value("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") != dark
        page.shot(tmp_path / "shot.png")
        server.view.end(Ending("VOID  client_limited\n  line two", 4))
        until(lambda: "exit code 4" in page.text("#link"))
    assert not page.complaints


def test_a_keyboard_reaches_what_scrolls_and_the_phase_is_announced(page: Browser) -> None:
    assert page.value("document.querySelector('#link').getAttribute('role')") == "status"
    boxes = page.value(
        "[...document.querySelectorAll('.scroll, #log, pre')].every(e => e.tabIndex === 0 && "
        "(e.getAttribute('aria-label') || e.getAttribute('aria-labelledby')))"
    )
    assert boxes is True
    assert page.value("document.querySelectorAll('th:not([scope])').length") == 0
    assert page.value("[...document.querySelectorAll('progress')].every(e => e.getAttribute('aria-label'))")


def test_the_end_is_said_with_the_result_and_stays_when_the_server_is_gone(
    tab: Browser, tmp_path: Path
) -> None:
    with served(running()) as server:
        tab.open(server.address.url)
        until(lambda: tab.text("#link") == "live")
        server.view.end(Ending("VALID  3.31 QPS per node", 0, "runs/golden_run/report.html"))
    until(lambda: tab.text("h1") == "The run has ended")
    assert tab.text("#link") == "ended, exit code 0"
    assert tab.text("#result") == "VALID  3.31 QPS per node"
    assert tab.text("#report") == "The report is runs/golden_run/report.html"
    assert not tab.value("document.getElementById('now').checkVisibility()")


def test_a_lost_connection_is_said_and_found_again(tab: Browser) -> None:
    with served(running()) as server:
        tab.open(server.address.url)
        until(lambda: tab.text("#link") == "live")
        asked = server.address
    until(lambda: tab.text("#link").startswith("connection lost"))
    assert "3.310" in tab.text("#now"), "the last figures stay"
    with serving(asked, LiveView(running()), "--live"):
        until(lambda: tab.text("#link") == "live", "it never came back")


def test_a_strangers_words_are_words(tab: Browser, tmp_path: Path) -> None:
    evil = (
        "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\u202e&lt;b&gt;\x1b[31m"
    )
    shutil.copy(GOLDEN / "manifest.json", tmp_path)
    told = json.loads((tmp_path / "manifest.json").read_text()) | {"run_id": evil, "verb": evil}
    (tmp_path / "manifest.json").write_text(json.dumps(told))
    done = next(json.loads(line) for line in LINES if b"window_done" in line)
    events = [
        done | {"kind": evil, "verdict": evil, "void": True, f"{evil}_p90_ms": 3.0, f"over_{evil}_pct": 1.0},
        {"event": "window", "index": 8, "kind": evil, "reason": evil, "rate_qps_per_node": 1.0},
        {"event": evil, "text": evil},
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    now = to_tree(RUNNING) | {"kind": evil}
    now["latencies"] = {evil: now["latencies"]["ttft_p90_ms"]}
    (tmp_path / FILE).write_text(json.dumps(now))
    tab.complaints.clear()
    tab.asked.clear()
    with served(look(tmp_path)) as server:
        tab.open(server.address.url)
        until(lambda: "onerror" in tab.text("#log"))
        for place in ("#name", "h1", "#now-note", "#bounds", "#windows", "#checks", "#log"):
            said = tab.text(place)
            assert "onerror='window.ran = 1'" in said.lower() or "</SCRIPT>" in said, place
            assert "\u202e" not in said and "\x1b" not in said
        server.view.end(Ending(evil, 3, evil))
        until(lambda: "onerror" in tab.text("#result"))
        assert tab.value("window.ran") is None and tab.value("document.images.length") == 0
        assert {url.removeprefix(server.address.url) for url in tab.asked} == {"", "events"}
    assert not tab.complaints


def test_figures_that_are_unknown_or_infinite_are_said(tab: Browser) -> None:
    tree = to_tree(RUNNING) | {"in_flight": None, "achieved_qps_per_node": None, "budget_s": None}
    tree["latencies"]["ttft_p90_ms"] |= {"p90_ms": float("inf"), "p50_ms": None}
    with served(running(None).after({"event": "window_so_far", **tree})) as server:
        tab.open(server.address.url)
        until(lambda: "Window 8" in tab.text("#now"))
        assert tab.text("#bounds").splitlines()[0].startswith("TTFT p90\t2000\tunknown\tinfinite (over)")
        assert tab.text("#figures").count("unknown") == 2
        assert "load so far" in tab.text("#bars")
