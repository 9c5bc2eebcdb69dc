"""Gaps between the tokens of one request, compiled."""

from typing import Any

import numpy as np

from serve_apps.engine_model.engine.native import native

LATE_GAP = 0.99
"""The gap that stands for a request is its own 99 % quantile, as other tools print it."""


@native
def late_gap_s(ends: Any, share: Any) -> Any:
    """The quantile `share` of the gaps between the times `ends`, of which there are two or more.

    By numpy's `linear` rule; the largest gaps alone are kept, for there may be millions of requests.
    """
    count = len(ends) - 1
    place = share * (count - 1)
    low = int(place)
    largest = np.zeros(count - low)
    for i in range(count):
        gap = ends[i + 1] - ends[i]
        if i < len(largest) or gap > largest[0]:
            at = 0 if i >= len(largest) else len(largest) - 1 - i
            while at + 1 < len(largest) and largest[at + 1] < gap:
                largest[at] = largest[at + 1]
                at += 1
            largest[at] = gap
    if len(largest) == 1:
        return largest[0]
    return largest[0] + (place - low) * (largest[1] - largest[0])


@native
def late_gaps_s(tokens: Any, outputs: Any, share: Any) -> Any:
    """The same of every request, whose tokens lie one after the other; nan of one token alone."""
    found, at = np.full(len(outputs), np.nan), 0
    for i in range(len(outputs)):
        if outputs[i] > 1:
            found[i] = late_gap_s(tokens[at : at + outputs[i]], share)
        at += outputs[i]
    return found
