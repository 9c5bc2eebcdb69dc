"""Reads what an ended or killed session left of a run, for the session that continues it.

Knows the run folder's events and tables; decides nothing.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS, Window, in_window
from analysis.results.runs import Run
from analysis.rows import metrics, records
from loadgen.drive.plan import Past
from loadgen.drive.window_health import WindowHealth, health_of
from loadgen.search.segments import Segment


def past(run: Run) -> Past:
    """The finished segments with their rows; what was cut short is measured again."""
    rows = run.requests()
    beats = run.clients().to_pylist()
    done = _sound(run.events(), rows)
    segments = [_segment(event, beats) for event in done]
    number = metrics.numbers(rows, "dwell")
    # Windows feel the load around them: before the first the warm-up, after the last what was cut short.
    around = (number == -1) | ((number == len(segments)) & metrics.status_in(rows, records.OK))
    kept = around | np.isin(number, [segment.index for segment, *_ in segments])
    due_ns, end_ns = metrics.numbers(rows, "due_ns"), metrics.numbers(rows, "end_offset_ns")
    last_ns = [*(due_ns + np.nan_to_num(end_ns)), *(beat["clock_ns"] for beat in beats), 0]
    return Past(
        segments=segments,
        rows=rows.filter(pa.array(kept)),
        next_seq=int(max(metrics.numbers(rows, "seq"), default=-1)) + 1,
        end_ns=int(max(last_ns)) + NS,
        elapsed_s=done[-1]["elapsed_s"] if done else 0.0,
        next_client=int(max([*_clients(rows), *(beat["client_id"] for beat in beats)], default=-1)) + 1,
    )


def _sound(events: list[dict[str, Any]], rows: pa.Table) -> list[dict[str, Any]]:
    """Finished segments up to the last that can be believed; what follows is measured again.

    The end of a session spoils its last windows: their answers were cut or lost with the load actors, or
    the service was dying. A window that was void for another reason is worth another try too. Where the
    service came back the session went on: `recovered` names what its loss spoilt, and no more is measured
    again.
    """
    done: list[dict[str, Any]] = []
    whole = done
    for event in events:
        if event["event"] == "segment_done":
            done = [*done[: event["index"]], event]
        elif event["event"] == "target_lost":
            whole, done = done, done[: max(0, event["last"])]
        elif event["event"] == "recovered":
            lost = {"void": True, "loss": event["reason"]}
            done = [one | (lost if one["index"] in event["windows"] else {}) for one in whole]
    while done and (done[-1]["void"] or _cut(rows, Window(**done[-1]["window"]))):
        done.pop()
    return done


def _cut(rows: pa.Table, window: Window) -> bool:
    """True if answers of the window were cut off by the end of the session, or died with it."""
    inside = in_window(rows, window)
    ours = metrics.status_in(inside, "lost") | metrics.word_in(inside, "error_kind", "interrupted")
    return bool(ours.any())


def _clients(rows: pa.Table) -> list[float]:
    known = metrics.numbers(rows, "client_id")
    return list(known[~np.isnan(known)])


def _segment(
    event: dict[str, Any], beats: list[dict[str, Any]]
) -> tuple[Segment, Window, tuple[bool, bool], WindowHealth]:
    window = Window(**event["window"])
    judged = event["bad"], event["void"]
    seen = replace(health_of(beats, window, event["lost_actors"]), loss=event.get("loss", ""))
    return Segment(**event["segment"]), window, judged, seen
