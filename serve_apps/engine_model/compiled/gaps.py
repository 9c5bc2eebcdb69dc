"""Gaps between the tokens of one request, compiled."""

from typing import Any

import numpy as np

from serve_apps.engine_model.compiled.native import native


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
