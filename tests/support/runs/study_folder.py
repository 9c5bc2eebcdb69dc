"""A study's folder whose parts are copies of the golden run."""

import json
import shutil
from pathlib import Path
from typing import Any

from analysis import load_run
from analysis.results import studies
from analysis.results.json_border import to_tree
from tests.support.runs.golden import GOLDEN, unsealed


def studied(path: Path, kind: str, *names: str, **more: Any) -> Path:
    """A study in `path` whose parts are copies of the golden run."""
    verdicts = {}
    for name in names:
        unsealed(Path(shutil.copytree(GOLDEN, path / name)))
        verdicts[name] = load_run(path / name).verdict
    first = json.loads((path / names[0] / "sweep.json").read_text())
    tree = {
        **{"schema_version": 1, "study": kind, "state": "ended", "verb": "sweep", "run_id": path.name},
        **{"folder": f"runs/{path.name}", "asked": first["asked"], "names": list(names), "clock": "wall"},
        "parts": [to_tree(studies.part_row(name, one)) for name, one in verdicts.items() if one],
        "requests": to_tree(studies.requests(one for one in verdicts.values() if one)),
        **{"evidence": f"{len(names)} parts", "valid": True, "passed": True, "exit_code": 0, "reason": ""},
    }
    (path / "study.json").write_text(json.dumps(tree | more))
    return path
