"""analysis.report in a real browser: no errors, no sideways scrolling, readable letters, pages on paper."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import report
from tests.support.machine.browser import PALEST, PATH, Browser
from tests.support.runs.golden import GOLDEN, changed, sweep_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PATH is None, reason="no Chromium on the PATH: make browser installs one"),
]

PHONE, DESKTOP = (390, 844), (1280, 900)
MOST_PAGES = 7
MEASURE = """
(() => {
  const shown = e => e.getClientRects().length > 0;
  const every = selector => [...document.querySelectorAll(selector)];
  const letters = text => {
    const to = text.getScreenCTM();
    return Math.hypot(to.a, to.b) * parseFloat(getComputedStyle(text).fontSize);
  };
  return {
    wide: document.documentElement.scrollWidth,
    height: document.documentElement.scrollHeight,
    tables: every(".scroll").filter(e => e.scrollWidth > e.clientWidth).length,
    smallest: Math.min(...every("svg text").filter(shown).map(letters)),
    figures: every(".drawing").filter(shown).length,
    scrolled: every(".drawing").filter(e => e.scrollWidth > e.clientWidth).length,
    cut: every("body *").filter(e => !e.closest("table, pre, .skip") && shown(e))
      .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120)),
  };
})()
"""

SVG_FILLS = "[...document.querySelectorAll('svg *')].map(e => getComputedStyle(e).fill)"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def tab(chromium: Browser) -> Browser:
    """A desktop's screen, before which nothing was complained of."""
    chromium.screen(*DESKTOP)
    chromium.complaints.clear()
    return chromium


@pytest.fixture(scope="module")
def void(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a void run with a check of every state, and no figure."""
    tree = sweep_json(GOLDEN)
    tree |= {"valid": False, "passed": False, "exit_code": 4, "reason": "client_limited: more actors"}
    for check, passed in zip(tree["checks"], (False, True, None), strict=False):
        check |= {"passed": passed}
    tree["windows"][0] |= {"valid": False, "void_reason": "client_limited"}
    run = changed(tmp_path_factory.mktemp("void") / "run", **tree)
    (run / "windows.parquet").unlink()
    out = run / "report.html"
    report.command([run], out)
    return out


def test_the_page_of_a_void_run_can_be_read_too(tab: Browser, void: Path) -> None:
    tab.screen(*PHONE)
    tab.open(void.as_uri())
    assert tab.value(MEASURE)["wide"] <= PHONE[0]
    palest = tab.value(PALEST)
    assert palest[0][0] >= 4.5, palest


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_nothing_scrolls_sideways_and_every_letter_can_be_read(
    tab: Browser, golden_report: Path, size: tuple[int, int]
) -> None:
    tab.screen(*size)
    tab.open(golden_report.as_uri())
    result, palest = tab.value(MEASURE), tab.value(PALEST)
    assert not tab.complaints
    assert result["wide"] <= size[0]
    assert result["height"] > 5 * size[1]
    if size == PHONE:
        assert result["tables"] > 0, "tables scroll inside their box"
    assert result["smallest"] >= 8.9, "letters of figures, in pixels"
    assert result["figures"] >= 6
    assert not result["scrolled"], "figures need no sideways scrolling"
    assert not result["cut"]
    assert palest[0][0] >= 4.5, palest


def test_the_figures_follow_a_dark_page(tab: Browser, golden_report: Path) -> None:
    tab.screen(*DESKTOP, dark=True)
    tab.open(golden_report.as_uri())
    palest = tab.value(PALEST)
    assert palest[0][0] >= 4.5, palest
    grounds = "[...document.querySelectorAll('.drawing')].map(e => getComputedStyle(e).backgroundColor)"
    assert set(tab.value(grounds)) == {"rgba(0, 0, 0, 0)"}
    assert "rgb(255, 255, 255)" not in tab.value(SVG_FILLS)


def test_it_prints_on_few_pages(tab: Browser, golden_report: Path, tmp_path: Path) -> None:
    tab.open(golden_report.as_uri())
    tab.print(tmp_path / "report.pdf")
    printed = (tmp_path / "report.pdf").read_bytes()
    assert printed.startswith(b"%PDF") and 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= MOST_PAGES
