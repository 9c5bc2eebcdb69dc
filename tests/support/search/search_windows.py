"""Windows of a search with known counts."""

from analysis.capacity.window_counts import NS, LimitCount, WindowCounts


def window_of(requests, ttft, tpot, paced):
    return WindowCounts(
        0, "window", 8.0, 1, 0, 0, 45 * NS, 45 * NS,
        requests=requests,
        limits={"ttft": LimitCount(ttft, requests, (), ()), "tpot": LimitCount(tpot, paced, (), ())},
    )  # fmt: skip
