"""The import direction of conf, analysis, serve_apps, cluster and loadgen, checked on their source."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
RULES = yaml.safe_load((ROOT / "tests" / "data" / "layers.yaml").read_text())
ALLOWED: dict[str, list[str]] = RULES["allowed"]
FLOORS: dict[str, list[list[str]]] = RULES["floors"]
CONFINED: dict[str, list[str]] = RULES["confined"]
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "manager", "misc")
SOURCES = [path for room in ALLOWED for path in sorted((ROOT / room).rglob("*.py"))]


@cache
def imported(path: Path) -> set[str]:
    """Dotted names a file imports, anywhere in it; of a `from` import also each name below its module."""
    return imported_in(path.read_text())


def imported_in(text: str) -> set[str]:
    """The same of a file's text."""
    result: set[str] = set()
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            result.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            result.update({f"{node.module}.{alias.name}" for alias in node.names}, {str(node.module)})
    return result


def statements(tree: ast.Module) -> list[ast.AST]:
    """All statements of a file at any depth, with the handlers and cases that hold some; no expression."""
    result: list[ast.AST] = [tree]
    for node in result:
        for inside in ("body", "orelse", "finalbody", "handlers", "cases"):
            result += getattr(node, inside, ())
    return result


def floor(room: str, inside: str) -> tuple[int, str]:
    """The floor of a path or dotted name below a room, and its folder; the roof for what no folder holds."""
    place = inside.replace(".", "/") + "/"
    for height, folders in enumerate(FLOORS[room]):
        for folder in folders:
            if place.startswith(f"{folder}/"):
                return height, folder
    return len(FLOORS[room]), ""


def upward(path: Path, imports: set[str]) -> set[str]:
    """Which imports of a file are from a floor that is not below its own."""
    room, *inside = path.relative_to(ROOT).with_suffix("").parts
    height, folder = floor(room, "/".join(inside))
    result = set()
    for name in imports:
        if name.startswith(f"{room}."):
            there, other = floor(room, name.removeprefix(f"{room}."))
            shows = str(path.relative_to(ROOT)) in RULES["showing"] and other == "views"
            if other and other != folder and there >= height and not shows:
                result.add(name)
    return result


@pytest.mark.parametrize("room", ALLOWED)
def test_imports_go_one_way_and_heavy_ones_stay_where_they_belong(room: str) -> None:
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        if name.startswith(f"{room}/") and name not in RULES["roots"]:
            roots = {each.split(".")[0] for each in imported(path)}
            ours = roots & set(ALLOWED)
            assert ours <= set(ALLOWED[room]), f"{name} imports {ours - set(ALLOWED[room])}"
            strange = [package for package in roots & set(CONFINED) if name not in CONFINED[package]]
            assert not strange, f"{name} imports {strange}"


def test_folders_import_lower_floors_only() -> None:
    assert {str(path): result for path in SOURCES if (result := upward(path, imported(path)))} == {}


@pytest.mark.parametrize("line", ["from loadgen.cli import output", "from loadgen.cli.output import printed"])
def test_a_planted_upward_import_is_found(line: str) -> None:
    planted = ROOT / "loadgen" / "traffic" / "planted.py"
    assert upward(planted, imported_in(f"def later() -> None:\n    {line}\n"))
    assert not upward(planted, imported_in("from loadgen.traffic import lengths\n"))


def test_every_folder_has_a_floor() -> None:
    for path in SOURCES:
        room, *folders = path.relative_to(ROOT).parts[:-1]
        if folders and path.name != "__init__.py":
            assert floor(room, "/".join(folders))[1], f"{path} stands on no floor"


def test_engine_model_has_no_clock_and_no_loop() -> None:
    for path in (ROOT / "serve_apps" / "engine_model").rglob("*.py"):
        assert not imported(path) & {"time", "asyncio", "threading", "ray"}, path


def test_no_module_is_a_drawer() -> None:
    assert not [path for path in SOURCES if path.stem in FORBIDDEN_NAMES]


def test_no_test_imports_another() -> None:
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if not re.search(r"import.*\btest_|tests\..*\btest_", path.read_text()):
            continue  # most files, which would take a second to parse
        parts = {part for name in imported(path) if name.startswith("tests.") for part in name.split(".")}
        assert not {part for part in parts if part.startswith("test_")}, f"{path}: move it to tests/support"


def test_an_import_is_found_wherever_it_stands() -> None:
    clauses = "try:\n import a\nexcept OSError:\n import b\nelse:\n import c\nfinally:\n import d\n"
    match = "match 1:\n case 1:\n  async def f():\n   class C:\n    from e import g\n"
    loops = "while x:\n import h\nelse:\n for i in x:\n  with x:\n   if x: import i\n   else: import j\n"
    assert imported_in(clauses + match + loops) == {"a", "b", "c", "d", "e", "e.g", "h", "i", "j"}
