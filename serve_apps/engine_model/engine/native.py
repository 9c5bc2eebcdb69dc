"""Machine code of the engine model's loops, by numba."""

import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba


@cache
def _folder() -> str | None:
    """A folder of the user's for machine code of exactly these sources; None where none can be written.

    numba looks at the file of a function alone, and would keep a function called from it that has changed.
    """
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parents[1].rglob("*.py")))
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "maxqps" / hashlib.sha256(sources).hexdigest()[:16]
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


def native(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` compiled at its first call."""
    before, folder = numba.config.CACHE_DIR, _folder()
    numba.config.CACHE_DIR = folder or before
    compiled: Callable[..., Any] = numba.njit(
        cache=folder is not None, nogil=True, error_model="numpy", no_cfunc_wrapper=True
    )(function)
    numba.config.CACHE_DIR = before
    return compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A named part of compiled functions, for which a call would cost more than what it does."""
    compiled: Callable[..., Any] = numba.njit(inline="always")(function)
    return compiled
