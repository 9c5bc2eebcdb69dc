"""The documents: links lead somewhere, files and modules they name exist, and the index has every page."""

import re
from pathlib import Path

import pytest

from analysis.figures import canvas
from tests.support.runs import readme_sample

ROOT = Path(__file__).parent.parent
ROOMS = ("conf", "analysis", "serve_apps", "cluster", "loadgen", "tests", "docs")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = {path.name for room in ROOMS for path in (ROOT / room).rglob("*.py")}
OF_VLLM = {"moriio_toy_proxy_server.py", "toy_proxy_server.py"}
"""Files of vLLM that docs/recipes.md names."""
FENCE = re.compile(r"```.*?```", re.S)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_ours(name: str) -> bool:
    """True for a file, folder or module of the tree."""
    return (ROOT / name).exists() or (ROOT / f"{name}.py").exists()


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@each_page
def test_paths_and_modules_exist(page: Path) -> None:
    text = page.read_text()
    quoted = " ".join(re.findall(r"`([^`]+)`", FENCE.sub("", text)))
    rooms = "|".join(ROOMS)
    for path in re.findall(rf"(?<![\w./])(?:{rooms})/[\w./-]*\w(?![\w/-]*[*<])", quoted):
        assert is_ours(path), path
    for name in re.findall(r"(?<![\w./])\w+\.py\b", quoted):
        assert name in SOURCES | OF_VLLM, name
    for module in re.findall(rf"(?:python -m|from|import) ((?:{rooms})(?:\.\w+)*)", text):
        assert is_ours(module.replace(".", "/")), module


def test_the_readme_prints_what_the_command_prints() -> None:
    assert readme_sample.readme() == (ROOT / "README.md").read_text(), "make readme writes it again"


def test_the_readmes_picture_is_of_the_golden_run_and_follows_dark_mode() -> None:
    for path, svg in readme_sample.pictures().items():
        assert path.read_text() == svg, "make readme draws it again"
        assert f"docs/{path.name}" in (ROOT / "README.md").read_text()
    light, dark = readme_sample.pictures().values()
    assert light != dark and not any(color in dark for color in canvas.DARK)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert not [page.name for page in PAGES[2:] if page.name != "README.md" and f"({page.name})" not in index]
