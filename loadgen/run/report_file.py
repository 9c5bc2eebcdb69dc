"""Writes report.html once a run or study has ended; whatever goes wrong with that changes no result.

Knows when a report is due; what stands in it is for `analysis.report`.
"""

from pathlib import Path

from analysis import report
from analysis.results.summary import Tree
from conf.io import terminal
from conf.io.one_line import reason
from loadgen.run.progress import Emit


def written(tree: Tree, show: Emit) -> Tree:
    """The conclusion of a run or study with the path of its `report`; as it is where none could be written.

    The verdict is on disk by now. Why there is no report is one line on stderr; so is a Ctrl-C meanwhile.
    """
    if not tree.get("folder") or _is_empty(tree):
        return tree
    folder = Path(tree["folder"])
    try:
        show("report", text="writing the report")
        return tree | {"report": str(report.write(folder))}
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # noqa: BLE001  what was measured must not be lost with its picture
        why = f"{type(error).__name__}: {reason(error)}"
    terminal.note(f"no report was written ({why}); python -m analysis report {folder} tries again")
    return tree


def _is_empty(tree: Tree) -> bool:
    """True where nothing was planned, as after a failed start: the answer says why."""
    return not (tree.get("requests") or {"planned": 1})["planned"]
