"""Goes on with what an earlier session left in a run folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.capacity.window_counts import NS, Window, WindowCounts, in_window
from analysis.results.runs import Event, Run, RunError
from analysis.rows import metrics, records
from conf import ConfigError
from conf.io.one_line import reason
from loadgen.drive.load_feed import Past, health_of
from loadgen.run.run_folder import RunFolder, read_files, sha256_of
from loadgen.search.window_plan import MeasuredWindow, WindowPlan


def past(run: Run) -> Past:
    """The finished windows with their rows; what was cut short is measured again."""
    rows = run.requests()
    beats = run.clients().to_pylist()
    done = _sound(run.events(), rows)
    windows = [_window(event, beats) for event in done]
    number = metrics.numbers(rows, "window_index")
    # Windows feel the load around them: before the first the warm-up, after the last what was cut short.
    around = (number == -1) | ((number == len(windows)) & metrics.status_in(rows, records.OK))
    kept = around | np.isin(number, [window.index for window in windows])
    due_ns, end_ns = metrics.numbers(rows, "due_ns"), metrics.numbers(rows, "end_offset_ns")
    clients = [*metrics.numbers(rows, "client_id"), *(beat["client_id"] for beat in beats), -1]
    last_ns = [*(due_ns + np.nan_to_num(end_ns)), *(beat["clock_ns"] for beat in beats), 0]
    return Past(
        windows=windows,
        rows=rows.filter(pa.array(kept)),
        next_seq=int(max(metrics.numbers(rows, "seq"), default=-1)) + 1,
        end_ns=int(max(last_ns)) + NS,
        elapsed_s=done[-1]["elapsed_s"] if done else 0.0,
        next_client=int(np.nanmax(clients)) + 1,
    )


def _sound(events: list[Event], rows: pa.Table) -> list[Event]:
    """Finished windows up to the last that can be believed; what follows is measured again.

    The end of a session spoils its last windows, whose answers were cut or lost. Where the service came back,
    `recovered` names what its loss spoilt, and `rejudged` what the outage of a host did.
    """
    done: list[Event] = []
    whole = done
    for event in events:
        if event["event"] == "window_done":
            done = [*done[: event["index"]], event]
        elif event["event"] == "target_lost":
            whole, done = done, done[: max(0, event["last"])]
        elif event["event"] == "recovered":
            lost = {"void": True, "loss": event["reason"]}
            done = [{**record, **(lost if record["index"] in event["windows"] else {})} for record in whole]
        elif event["event"] == "rejudged":
            new = {"void": event["void"], "lost": event["lost"]}
            done = [{**record, **(new if record["index"] == event["index"] else {})} for record in done]
    while done:
        # Answers of a window may have been cut off by the end of the session, or have died with it.
        inside = in_window(rows, Window(**done[-1]["window"]))
        cut = metrics.status_in(inside, "lost") | metrics.word_in(inside, "error_kind", "interrupted")
        if not (done[-1]["void"] or cut.any()):
            break
        done.pop()
    return done


def _window(event: Event, beats: list[dict[str, Any]]) -> MeasuredWindow:
    counts = WindowCounts(**event["window"])
    evidence, lost = health_of(beats, counts, event["lost_actors"]), event.get("lost", {})
    evidence = replace(
        evidence,
        loss=event.get("loss", ""),
        lost_load_hosts=tuple(lost.get("load_hosts", ())),
        lost_nodes=tuple(lost.get("nodes", ())),
    )
    plan = WindowPlan(**event["plan"])
    return MeasuredWindow(plan, counts, void=event["void"], bad=event["bad"], evidence=evidence)


@contextmanager
def resuming() -> Iterator[None]:
    """Raise ConfigError for a folder that cannot be resumed."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot resume: {reason(error)}") from error


@resuming()
def reopen(run: Run) -> tuple[RunFolder, int]:
    """The folder of a run that ended or was killed, all rows recovered; their number. Raises ConfigError."""
    folder = RunFolder(run.path)
    return folder, folder.collect().num_rows


def continued(run: Run) -> Past:
    """The state from which a sweep goes on. Raises ConfigError with the remedy if it cannot go on."""
    verb = run.manifest["verb"]
    if verb != "sweep":
        required = " --require" if "--require" in run.manifest.get("argv", []) else ""
        raise ConfigError(
            f"a {verb} is not continued; run it again: "
            f"python -m loadgen {verb} --config {run.path}/config.yaml run=NAME{required}"
        )
    for key, path in read_files(run.config).items():
        if not path.is_file() or sha256_of(path) != run.manifest.get(key):
            raise ConfigError(f"{path} is not what it was when {run.path} began; put the old file back")
    try:
        return past(run)
    except RunError:
        raise
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        why = f"its events are not those of a run ({type(error).__name__}: {reason(error)})"
        raise ConfigError(f"cannot resume {run.path}: {why}; measure again") from error
