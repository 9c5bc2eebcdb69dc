"""Marks on dataclass fields that say how a field stands in JSON.

A field without a default is always written. One with a default is absent from the file while it holds it.
"""

from dataclasses import field
from typing import Any


def always(default: Any) -> Any:
    """A field that is written whatever it holds."""
    return field(default=default, metadata={"always": True})


def inline() -> Any:
    """A dataclass, or None, whose keys stand among those of its owner; None while any required one lacks."""
    return field(default=None, metadata={"inline": True})
