"""What this machine can carry: the run folder, load actors, and how fast a simulated clock may run."""

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analysis.results.summary import EXIT_VOID
from analysis.results.verdicts import RunVerdict
from conf import ConfigError, Experiment
from conf.specs.experiment import SimulatedEngine
from loadgen.cli import engine_model
from loadgen.drive.driver import Driver
from loadgen.run.jobs import SearchCapacity
from loadgen.search.window_plan import Stop, WindowPlan

ACTORS_PER_CORE = 16
"""Most load actors per core: one alone sends hundreds of requests a second (our choice)."""
SCALES = (3.0, 2.5, 2.0, 1.0)
"""Speeds of the clock over the real one, fastest first (our choice: latencies are exact to .5 % at 5)."""
CORE_TOKENS_PER_S = 720.0
"""Output tokens per real second that a core simulates and loads with room to spare (our choice).

Two idle cores carried 1900 in one sweep and were late with 1600 in another.
"""
FREE_CORES = 1.0
"""Fewest cores that others must leave free for a fast clock: without them it would be late (our choice)."""
SURE_WINDOWS = 2
"""Valid windows after which a late one is an exception and no reason to begin again (our choice)."""
LATE = ("client_limited", "engine_late")
"""Reasons of void windows that a slower clock mends."""
KEY = "engine.time_scale"


def refuse(experiment: Experiment) -> None:
    """Raise ConfigError for a run folder that exists or cannot be made, and for too many load actors."""
    out, run = Path(experiment.out), experiment.run
    if run and (out / run).exists():
        raise ConfigError(f"run folder {out / run} exists; choose another run=NAME or remove it")
    there = next(ancestor for ancestor in (out, *out.absolute().parents) if ancestor.exists())
    try:  # access rights say nothing of read-only or full disks
        Path(tempfile.mkdtemp(prefix=".maxqps-", dir=there)).rmdir()
    except OSError as error:
        why = f"cannot write to {there}: {error.strerror}"
        raise ConfigError(f"out={out}: {why}; choose another folder with out=FOLDER") from error
    actors, most = experiment.fleet.actors, ACTORS_PER_CORE * cores()
    if experiment.cluster.session != "address" and actors > most:
        raise ConfigError(
            f"fleet.actors={actors} would share the {cores()} cores of this machine; lower it to at most "
            f"{most}, for one sends hundreds of requests a second"
        )


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_cores(over_s: float = 1.0) -> float:
    """Cores that nothing used within the next `over_s`; all where the system does not count (no /proc/stat).

    A load average would still hold what ended a minute ago, as an installation.
    """
    try:
        before_s, began_s = _idle_s(), time.monotonic()
        time.sleep(over_s)
        return min(cores(), (_idle_s() - before_s) / (time.monotonic() - began_s))
    except OSError:
        return cores()


def _idle_s() -> float:
    """Seconds that all cores of the machine have been idle or waited for a disk (proc_stat(5))."""
    times = Path("/proc/stat").read_text().split(maxsplit=6)
    return (int(times[4]) + int(times[5])) / os.sysconf("SC_CLK_TCK")


def is_free(experiment: Experiment, words: Sequence[str]) -> bool:
    """True if the clock is ours to choose: one search on a simulated engine whose words set no clock."""
    is_set = any(word.startswith(f"{KEY}=") for word in words)
    return isinstance(experiment.engine, SimulatedEngine) and experiment.search.parts == 1 and not is_set


def with_clock(experiment: Experiment, scale: float) -> Experiment:
    """The experiment at so many times the real clock."""
    assert isinstance(experiment.engine, SimulatedEngine)
    return replace(experiment, engine=replace(experiment.engine, time_scale=scale))


def fast(experiment: Experiment) -> Experiment:
    """The experiment at the fastest clock for which this machine has the cores."""
    qps = (engine_model.guess_qps(experiment) or 0.0) * experiment.cluster.nodes
    tokens_per_s = qps * experiment.workload.output_tokens.mean
    most = CORE_TOKENS_PER_S * cores()
    return with_clock(experiment, next((s for s in SCALES if s * tokens_per_s <= most), SCALES[-1]))


def beside_neighbours(experiment: Experiment) -> Experiment:
    """The experiment in real time if other processes leave too few cores free now."""
    is_busy = free_cores() < FREE_CORES
    return with_clock(experiment, SCALES[-1]) if is_busy else experiment


class SearchOnFastClock(SearchCapacity):
    """The job of a sweep that stops where the first windows show that this machine is late."""

    _late = ""

    def was_too_fast(self, verdict: RunVerdict) -> bool:
        """True of a void search on a fast clock for which this machine was late."""
        is_late = bool(self._late) or verdict.reason.partition(":")[0] in LATE
        return is_late and verdict.exit_code == EXIT_VOID and self.experiment.time_scale > SCALES[-1]

    def next_step(self, driver: Driver) -> WindowPlan | Stop:
        judged = [window.verdict for window in driver.windows.outcomes]
        if driver.plan.time_scale > SCALES[-1] and sum(verdict.valid for verdict in judged) < SURE_WINDOWS:
            self._late = next((verdict.reason for verdict in judged if verdict.reason in LATE), "")
        return Stop("void", f"late: {self._late}") if self._late else super().next_step(driver)
