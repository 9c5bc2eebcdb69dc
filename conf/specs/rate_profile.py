"""The rules for a rate over time, `profile_qps`."""

import math

from conf.io.check import require
from conf.specs.search import MOST_QPS, MOST_S


def check_profile(points: list[list[float]], duration_s: float | None) -> None:
    """Raise ValueError unless points [seconds, QPS] ascend from 0 s within `duration_s` and offer load."""
    pairs = all(len(point) == 2 for point in points)
    require(pairs, "profile_qps must be a list of pairs [seconds, QPS per node], such as [[0,2],[60,8]]")
    finite = all(0 <= number < math.inf for point in points for number in point)
    require(finite, f"profile_qps={points}: seconds and rates must be finite and not negative")
    most_s, most_qps = (max(column) for column in zip(*points, strict=True))
    require(most_s <= MOST_S, f"profile_qps: {most_s:g} s is beyond reason; at most {MOST_S:g}")
    require(
        most_qps <= MOST_QPS, f"profile_qps: {most_qps:g} QPS per node is beyond reason; at most {MOST_QPS:g}"
    )
    seconds = [second for second, _ in points]
    require(seconds[0] == 0, f"profile_qps begins at {seconds[0]:g} s; its first point must be at 0 s")
    require(seconds == sorted(seconds), f"profile_qps={points}: the seconds must not go back")
    require(
        duration_s is None or seconds[-1] <= duration_s,
        f"profile_qps ends at {seconds[-1]:g} s but duration_s={duration_s}; raise it or leave it out",
    )
    held = [*points, [duration_s or seconds[-1] or 1.0, points[-1][1]]]
    offered = any(b[0] > a[0] and a[1] + b[1] > 0 for a, b in zip(held, held[1:], strict=False))
    require(offered, "profile_qps is zero all the time; give one of its points a rate")
