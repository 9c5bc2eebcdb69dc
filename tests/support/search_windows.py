"""Windows of a search with known counts."""

from analysis.capacity.window_counts import NS, Dwell, LimitCount


def window_of(requests, ttft, tpot, paced):
    return Dwell(
        0, "dwell", 8.0, 1, 0, 0, 45 * NS, 45 * NS,
        requests=requests,
        ttft=LimitCount(ttft, requests, (), ()),
        tpot=LimitCount(tpot, paced, (), ()),
    )  # fmt: skip
