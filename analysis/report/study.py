"""A study on the page: its folder with the parts that have begun, and tables of its answers.

Knows the verdict of a study; each part has a report of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.report.blocks import Cell, Facts, Table
from analysis.report.wording import UNKNOWN, figure, qps, value
from analysis.results import matrix_table, studies
from analysis.results.runs import RECORDED, Run, load_run

Tree = Mapping[str, Any]
Links = Mapping[str, Cell]
"""Each part's name as a cell that links to its report."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """A study's folder: its verdict so far, the names of parts that have `begun`, and the runs among them."""

    path: Path
    tree: Tree
    begun: tuple[str, ...]
    parts: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name


def load(path: Path) -> StudyFolder:
    """Open a study's folder. Raises RunError if it cannot be read."""
    tree = studies.load_study(path)
    runs = [name for name in tree["names"] if (path / name / "manifest.json").exists()]
    begun = [name for name in tree["names"] if name in runs or studies.is_study(path / name)]
    return StudyFolder(path, tree, tuple(begun), tuple(load_run(path / name) for name in runs))


def parts(tree: Tree, links: Links) -> Table:
    """Every part with its answer, or the reason why it has none."""
    if tree["study"] == matrix_table.KIND:
        return _cells(tree, links)
    known = {row["name"]: row for row in tree["parts"]}
    recorded = tree["study"] == "recipe"
    rows = [(links[name], *_part(known.get(name), recorded)) for name in tree["names"]]
    heads = "part", "result", "QPS per node", "95 % interval", "certified", "limited by", "seed"
    failed = tuple("failed" if row[1].startswith("no result (") else "" for row in map(_texts, rows))
    return Table(
        "Parts of the study (study.json)", heads, tuple(rows), tones=failed, state=1, words=frozenset({1})
    )


def _texts(row: tuple[Cell, ...]) -> list[str]:
    return [cell if isinstance(cell, str) else cell.text for cell in row]


def _part(row: Tree | None, recorded: bool) -> tuple[str, ...]:
    if row is None:
        return "no result yet", *[""] * 5
    if recorded and row["exit_code"] in RECORDED:
        return "recorded", *[""] * 4, _seed(row)
    q = row["qps_per_node"]
    if row["exit_code"] or not q:
        return f"no result (exit {row['exit_code']}): {row['reason']}", *[""] * 4, _seed(row)
    limit = f"p90 {row['binding'].upper()}"
    return "valid", qps(q["estimate"]), _ends(q), qps(q["certified"]), limit, _seed(row)


def _seed(row: Tree) -> str:
    return UNKNOWN if row["seed"] is None else str(row["seed"])


def _cells(tree: Tree, links: Links) -> Table:
    """The cells of a matrix: place on the axes, capacity, and ratio to the first cell."""
    rows, tones = [], []
    for cell in tree["cells"]:
        at = [value(cell["at"].get(axis)) for axis in tree["axes"]]
        rows.append((links.get(cell["name"], cell["name"]), *at, *_answer(cell), *_ratio(cell["ratio"])))
        tones.append("failed" if cell["exit_code"] else "")
    found = "QPS per node", "95 % interval", "certified", "limited by", "ratio to the reference", "how"
    heads = ("cell", *tree["axes"], *found)
    words = frozenset({len(tree["axes"]) + 1, len(heads) - 1})
    return Table("Cells of the matrix (study.json)", heads, tuple(rows), tones=tuple(tones), words=words)


def _answer(cell: Tree) -> tuple[str, ...]:
    q = cell["qps_per_node"]
    if q is None:
        why = (
            "not measured yet" if cell["exit_code"] is None else f"exit {cell['exit_code']}: {cell['reason']}"
        )
        return why, "", "", ""
    limit = f"p90 {cell['binding'].upper()}"
    if cell["open_above"]:
        return f"at least {qps(q['low'])}", "open above", UNKNOWN, limit
    if cell["open_below"]:
        return f"at most {qps(q['high'])}", "open below", UNKNOWN, limit
    return qps(q["estimate"]), _ends(q), qps(q["certified"]), limit


def _ratio(ratio: Tree | None) -> tuple[str, str]:
    if ratio is None:
        return "", ""
    if ratio["how"] == matrix_table.REFERENCE:
        return "1", "the reference"
    how = f"{ratio['how']}: {ratio['why']}" if ratio["why"] else f"{ratio['how']}, {ratio['pairs']} pairs"
    return f"{ratio['value']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})", how


def together(tree: Tree) -> Facts | None:
    """Spread between deployments, or variation of repeats; None if the study has neither."""
    rows = []
    if between := tree.get("between"):
        rows.append(("spread between deployments (sd)", _percent(between["sd_pct"])))
        rows.append(("noise within one (sd)", f"{figure(between['within_sd_pct'])} %"))
    if effects := tree.get("effects_pct"):
        rows += [(f"{name} against the mean", _percent(effect)) for name, effect in effects.items()]
    if tree.get("variation_pct"):
        rows.append(("coefficient of variation", _percent(tree["variation_pct"])))
    if tree.get("remedy"):
        rows.append(("to narrow the interval", tree["remedy"]))
    return Facts(tuple(rows)) if rows else None


def differences(tree: Tree) -> Table | None:
    """Keys that differ between A and B of a comparison; None for another study."""
    if not tree.get("differs"):
        return None
    rows = tuple((key, value(ours), value(theirs)) for key, (ours, theirs) in tree["differs"].items())
    return Table("What differs from A to B", ("key", "A", "B"), rows)


def _ends(q: Tree) -> str:
    return f"{qps(q['low'])} to {qps(q['high'])}"


def _percent(found: Tree) -> str:
    return f"{found['estimate']:z.1f} % ({found['low']:z.1f} to {found['high']:z.1f})"
