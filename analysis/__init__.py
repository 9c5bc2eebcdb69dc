"""The meaning of numbers: records, metrics, capacity, validity, runs. Imports neither Ray nor HTTP nor vLLM.

Holds everything that a notebook needs: runs and studies, tables, a figure for each question, and the plan.
Each name of __init__.pyi is imported when it is first used.
"""

import ast
from pathlib import Path

from conf import lazy

_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text())
_NAMES = {
    alias.name: str(node.module)
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}
__all__ = sorted(_NAMES)
__getattr__ = lazy("analysis", _NAMES)


def __dir__() -> list[str]:
    """The names that a notebook completes."""
    return __all__
