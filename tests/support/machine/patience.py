"""How long tests wait for what comes sooner or later, and what they accept of a machine that is busy."""

import time
from collections.abc import Callable

from loadgen.traffic.schedule import NS

PATIENCE_S = 120.0
"""Longer than anything waited for takes on a machine whose cores are shared by ten (our choice)."""
START_S = 5 * PATIENCE_S
"""The same for a whole command: it starts Ray, deploys, and warms up before its first window (our choice)."""
PATIENCE_NS = int(PATIENCE_S * NS)
BUSY = ("client_limited", "engine_late", "burst_delivery", "path_slow")
"""Reasons for which a busy machine makes a window void."""


def until(seen: Callable[[], object], never: str = "it never came", patience_s: float = PATIENCE_S) -> None:
    """Wait for a condition; fail with `never` if it does not come.

    It is looked at ever more rarely: each look at a service of Ray's costs this machine milliseconds.
    """
    deadline_s, pause_s = time.monotonic() + patience_s, 0.02
    while not seen():
        assert time.monotonic() < deadline_s, never
        time.sleep(pause_s)
        pause_s = min(1.3 * pause_s, 0.5)
