"""analysis.report in a real browser: no errors, no sideways scrolling, readable letters, pages on paper."""

import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from analysis import report
from tests.support.runs.golden import GOLDEN, unsealed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH: make browser installs one"),
]

PHONE, DESKTOP = (390, 844), (1280, 900)
LEAST_PAGE = 0.55
"""A printed page but the last has ink down to this share of its height at least (our choice)."""
MOST_PAGES = 7
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MEASURE = """
<script>
function rgb(text) { return text.match(/[\\d.]+/g).map(Number); }
function light(part) { part /= 255; return part <= .03928 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4; }
function luminance(c) { return .2126 * light(c[0]) + .7152 * light(c[1]) + .0722 * light(c[2]); }
function ground(element) {
  for (; element; element = element.parentElement) {
    const c = rgb(getComputedStyle(element).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c;
  }
  return [255, 255, 255];
}
function letters(text) {
  const to = text.getScreenCTM();
  return Math.hypot(to.a, to.b) * parseFloat(getComputedStyle(text).fontSize);
}
const shown = e => e.getClientRects().length > 0;
const scrolls = "table, pre, .skip";
const texts = [];
for (const element of document.body.querySelectorAll("*")) {
  const own = [...element.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join(" ").trim();
  if (!own || element.closest("script, style")) continue;
  const style = getComputedStyle(element), inked = element instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [luminance(rgb(inked)), luminance(ground(element))];
  texts.push([(Math.max(a, b) + .05) / (Math.min(a, b) + .05), own.slice(0, 60)]);
}
texts.sort((x, y) => x[0] - y[0]);
console.log("found " + window.name + " " + JSON.stringify({
  inner: window.innerWidth,
  wide: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  tables: [...document.querySelectorAll(".scroll")].filter(e => e.scrollWidth > e.clientWidth).length,
  smallest: Math.min(...[...document.querySelectorAll("svg text")].filter(shown).map(letters)),
  figures: [...document.querySelectorAll(".drawing")].filter(shown).length,
  scrolled: [...document.querySelectorAll(".drawing")].filter(e => e.scrollWidth > e.clientWidth).length,
  cut: [...document.body.querySelectorAll("*")].filter(e => !e.closest(scrolls) && shown(e))
    .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.outerHTML.slice(0, 120)),
  texts: texts.length,
  palest: texts.slice(0, 5),
}) + " end");
</script>
"""


def chromium(folder: Path, page: Path, *words: str) -> tuple[str, str]:
    """stdout and stderr of one headless start; all share the profile in the folder above."""
    assert BROWSER
    command = [
        BROWSER,
        *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"),
        *("--enable-logging=stderr", "--v=0", f"--user-data-dir={folder.parent / 'profile'}"),
        *words,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, done.stderr


def framed(folder: Path, **frames: tuple[Path, tuple[int, int]]) -> Path:
    """A page with others in frames side by side, because a window is 500 pixels wide at least."""
    words = [
        f'<iframe name="{name}" src="{page.as_uri()}" '
        f'style="width: {width}px; height: {height}px; border: 0; float: left"></iframe>'
        for name, (page, (width, height)) in frames.items()
    ]
    file = folder / "frames.html"
    file.write_text(f'<!doctype html><body style="margin: 0; width: 9000px">{"".join(words)}')
    return file


@pytest.fixture(scope="module")
def page(golden_report: Path) -> Path:
    return golden_report


def scripted(page: Path, folder: Path) -> Path:
    """A copy of the page whose policy lets the script run."""
    text, count = POLICY.subn("", page.read_text())
    assert count == 1
    copy = folder / f"{page.parent.name}.html"
    copy.write_text(text.replace("</body>", f"{MEASURE}</body>"))
    return copy


@pytest.fixture(scope="module")
def measured(page: Path, void: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the script finds in each frame."""
    folder = tmp_path_factory.mktemp("measured")
    copy = scripted(page, folder)
    frames = framed(
        folder, phone=(copy, PHONE), desktop=(copy, DESKTOP), void=(scripted(void, folder), PHONE)
    )
    _, said = chromium(folder, frames, "--dump-dom")
    told = re.findall(r'"found (\w+) ({.*}) end"', said)
    return {name: json.loads(text.replace('\\"', '"')) for name, text in told}


@pytest.fixture(scope="module")
def void(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a void run with a check of every state, and no figure."""
    run = unsealed(Path(shutil.copytree(GOLDEN, tmp_path_factory.mktemp("void") / "run")))
    tree = json.loads((run / "sweep.json").read_text())
    tree |= {"valid": False, "passed": False, "exit_code": 4, "reason": "client_limited: more actors"}
    for check, passed in zip(tree["checks"], (False, True, None), strict=False):
        check |= {"passed": passed}
    tree["dwells"][0] |= {"valid": False, "void_reason": "client_limited"}
    (run / "sweep.json").write_text(json.dumps(tree))
    (run / "dwells.parquet").unlink()
    out = run / "report.html"
    report.command([run], out)
    return out


def test_the_page_of_a_void_run_can_be_read_too(measured: dict[str, dict[str, Any]]) -> None:
    found = measured["void"]
    assert found["wide"] <= found["inner"] == PHONE[0]
    assert found["palest"][0][0] >= 4.5, found["palest"]


@pytest.mark.parametrize(("name", "size"), [("phone", PHONE), ("desktop", DESKTOP)], ids=["phone", "desktop"])
def test_nothing_scrolls_sideways_and_every_letter_can_be_read(
    measured: dict[str, dict[str, Any]], name: str, size: tuple[int, int]
) -> None:
    found = measured[name]
    assert found["inner"] == size[0]
    assert found["wide"] <= found["inner"]
    assert found["height"] > 5 * size[1]
    if size == PHONE:
        assert found["tables"] > 0, "tables scroll inside their box"
    assert found["smallest"] >= 8.9, "letters of figures, in pixels"
    assert found["figures"] >= 6
    assert not found["scrolled"], "figures need no sideways scrolling"
    assert not found["cut"]
    assert found["texts"] > 300
    assert found["palest"][0][0] >= 4.5, found["palest"]


def test_it_draws_without_a_word_on_the_console(tmp_path: Path, page: Path) -> None:
    shot = tmp_path / "shot.png"
    frames = framed(tmp_path, phone=(page, PHONE), desktop=(page, DESKTOP))
    wide = PHONE[0] + DESKTOP[0]
    _, told = chromium(tmp_path, frames, f"--window-size={wide},{DESKTOP[1]}", f"--screenshot={shot}")
    assert not complaints(told)
    pixels = np.asarray(image.imread(shot))[..., :3]
    assert pixels.shape[:2] == (DESKTOP[1], wide)
    for drawn in (pixels[: PHONE[1], : PHONE[0]], pixels[:, PHONE[0] :]):
        inked = np.abs(drawn - 1).max(axis=2) > 0.1
        assert 0.02 < inked.mean() < 0.7
        assert inked[: len(inked) // 2].any() and inked[len(inked) // 2 :].any()


def complaints(told: str) -> list[str]:
    return [line for line in told.splitlines() if "CONSOLE" in line or "Content Security" in line]


def test_a_policy_that_is_broken_is_seen(tmp_path: Path, page: Path) -> None:
    """The check above can fail: a script in the page is refused, and that is on the console."""
    copy = tmp_path / "scripted.html"
    copy.write_text(page.read_text().replace("</body>", "<script>document.title = 'ran'</script></body>"))
    _, told = chromium(tmp_path, framed(tmp_path, phone=(copy, PHONE)), "--dump-dom")
    assert complaints(told)


def test_it_prints_on_pages(tmp_path: Path, page: Path) -> None:
    file = tmp_path / "report.pdf"
    _, told = chromium(tmp_path, page, f"--print-to-pdf={file}", "--no-pdf-header-footer")
    assert not complaints(told)
    lowest = ink_ends(file.read_bytes())
    assert 4 <= len(lowest) <= MOST_PAGES
    assert min(lowest[:-1]) >= LEAST_PAGE, lowest


def test_a_page_that_is_half_empty_is_seen(tmp_path: Path) -> None:
    """The check above can fail: what must not be broken goes to the next page."""
    box = "<p style='break-inside: avoid; height: 60vh'>one</p>"
    (tmp_path / "boxes.html").write_text(f"<!doctype html><body>{box * 2}")
    file = tmp_path / "boxes.pdf"
    chromium(tmp_path, tmp_path / "boxes.html", f"--print-to-pdf={file}", "--no-pdf-header-footer")
    first, _ = ink_ends(file.read_bytes())
    assert first < LEAST_PAGE


def ink_ends(printed: bytes) -> list[float]:
    """The share of each page's height, from the top, at which its lowest text stands."""
    assert printed.startswith(b"%PDF")
    pages = re.findall(
        rb"/Type\s*/Page\b.*?/MediaBox \[0 0 [\d.]+ ([\d.]+)\].*?/Contents (\d+) 0 R", printed, re.S
    )
    return [1 - lowest_text(stream(printed, int(number))) / float(height) for height, number in pages]


def stream(printed: bytes, number: int) -> str:
    """The drawing operators of an object of a PDF."""
    found = re.search(rb"(?<!\d)%d 0 obj\b.*?stream\r?\n" % number, printed, re.S)
    assert found
    return zlib.decompressobj().decompress(printed[found.end() :]).decode("latin1")


def lowest_text(operators: str) -> float:
    """Least height of a text's origin above the page's bottom; text is placed by cm, q, Q and Tm alone."""
    now, kept, least = np.eye(3), [], np.inf
    for line in operators.splitlines():
        words = line.split()
        if line == "q":
            kept.append(now)
        elif line == "Q":
            now = kept.pop()
        elif len(words) == 7 and words[-1] in ("cm", "Tm"):
            a, b, c, d, e, f = map(float, words[:6])
            placed = np.array([[a, b, 0], [c, d, 0], [e, f, 1]]) @ now
            if words[-1] == "cm":
                now = placed
            else:
                least = min(least, placed[2, 1])
    return float(least)
