"""analysis.live.screen: what each line says, whatever the width, the height and the words."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.live.screen import interval_axis, screen
from analysis.live.state import Belief, DoneWindow, LatencySoFar, LiveState
from tests.support.runs.live_states import RUNNING

NOW = replace(
    RUNNING,
    rate_qps_per_node=5.2,
    achieved_qps_per_node=5.1,
    sent=246,
    failed=2,
    pending=84,
    in_flight=91,
    latencies={
        "ttft_p90_ms": LatencySoFar(2000.0, 200, 512.0, 1100.0, 1.0),
        "tpot_p90_ms": LatencySoFar(100.0, 160, None, float("inf"), None),
    },
    elapsed_s=240.0,
    budget_s=720.0,
)
DONE = DoneWindow(
    2, "window", 5.0, 300, 0, 0, {"ttft_p90_ms": 900.0}, {"ttft_p90_ms": 1.0}, 0.4, "within", False
)
WIDE = Belief(5.2, 4.0, 7.0, 4.4, "tpot", False, True, 1)
NARROW = Belief(5.1, 4.9, 5.4, 4.9, "tpot", False, False, 3)
STATE = LiveState(
    run_id="20261124-120000-a1b2",
    verb="sweep",
    phase="window 3 at 5.200 QPS per node: near the estimate",
    now=NOW,
    windows=(replace(DONE, index=0), replace(DONE, index=1), DONE),
    beliefs=(WIDE, NARROW),
    log=("the engine model predicts 5.20 QPS per node",),
)


def test_one_screen_says_load_window_and_capacity() -> None:
    lines = screen(STATE, 79, 40, NOW)
    text = "\n".join(lines)
    assert "4:00 of 12:00, 8:00 left" in text
    assert "window 4 of about 9: window 3 at 5.200 QPS per node" in text
    assert "offered 5.20, achieved 5.10 QPS per node; 91 in flight" in text
    assert "provisional: 246 sent, 2 failed, 34 % of answers still out" in " ".join(text.split())
    assert "p90 TTFT         512.0    1100.0      2000     1.0 %" in text
    assert "unknown       inf       100 unknown %" in text
    belief = "capacity so far 5.10 QPS per node, 95 % interval [4.90, 5.40], 5 % quantile 4.90"
    assert belief in " ".join(text.split())
    assert text.index("  0 window") < text.index("  2 window")


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 60), st.text(), st.text())
def test_whatever_is_said_the_screen_is_no_wider_and_no_higher(
    width: int, height: int, words: str, key: str
) -> None:
    now = replace(NOW, latencies={key: NOW.latencies["ttft_p90_ms"]})
    state = replace(STATE, phase=words, log=(words,) * 5, run_id=words, now=now)
    lines = screen(state, width, height, now)
    assert len(lines) <= height and all(len(line) <= max(width, 40) for line in lines)
    assert all(line.isprintable() for line in lines)


def test_an_interval_narrows_on_one_axis() -> None:
    wide, narrow = (interval_axis(belief, (WIDE, NARROW), 70) for belief in (WIDE, NARROW))
    assert len(wide) == len(narrow) <= 70 and wide.split()[0] == narrow.split()[0]
    assert "<" in wide and "<" not in narrow  # an open end is said
    assert narrow.count("=") < wide.count("=")
    assert narrow.index("[") < narrow.index("|") < narrow.index("]")
