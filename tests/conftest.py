"""What tests share: the golden run's report, and the Ray session of this process."""

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from conf.specs.experiment import Cluster, Routing
from tests.support.machine.shared_session import SharedSession

if TYPE_CHECKING:
    from cluster.ray_session.session import Session

# With the default thresholds the collector would walk through all that the tests import hundreds of times.
gc.set_threshold(100_000)
# A run in the background ignores Ctrl-C, and so would the commands that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

ENDED = pytest.StashKey[int]()
LONG_TIMEOUT_S = 1200.0
"""For tests of Ray and vLLM: only what hangs is cut, and on a busy machine a session alone takes minutes."""
OPTIONAL = ("this build of vLLM on this CPU: ", "hosts are namespaces: ", "this kernel: ")
"""How the reasons begin for which a test may be skipped even under `--no-skips`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--no-skips`, for a run that must show everything."""
    parser.addoption("--no-skips", action="store_true", help="a skipped test fails, unless it is optional")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests in real time, of Ray and of vLLM their longer timeout."""
    for item in items:
        is_long = any(map(item.get_closest_marker, ("live", "ray", "vllm")))
        if is_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Count a battery's tests for the summary; turn a skip into a failure where `--no-skips` forbids it."""
    if call.when == "call" and (marker := item.get_closest_marker("battery")):
        item.user_properties.append(("battery", marker.args[0]))
    report = yield
    refuse_skip(report, item.config)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole file into an error where `--no-skips` forbids it."""
    report = yield
    refuse_skip(report, collector.config)
    return report


def refuse_skip(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> None:
    """Make a skipped report a failed one under `--no-skips`, unless its reason is among `OPTIONAL`."""
    if report.skipped and config.getoption("--no-skips") and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not reason.removeprefix("Skipped: ").startswith(OPTIONAL):
            report.outcome = "failed"
            report.longrepr = f"{reason}; --no-skips allows no skip"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many cases of each battery were tried, and how many of them failed."""
    counts: Counter[tuple[str, str]] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            counts.update((name, outcome) for key, name in report.user_properties if key == "battery")
    for name in sorted({name for name, _ in counts}):
        passed, failed = counts[name, "passed"], counts[name, "failed"]
        terminalreporter.write_line(f"battery {name}: {passed + failed} cases tried, {failed} failed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the exit code for `pytest_unconfigure`."""
    session.config.stash[ENDED] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave without Python's own cleaning up if Ray was here, once all is told.

    A thread of a Ray session that has ended may crash while Python exits, and the exit code of tests that
    passed would be that of a segmentation fault (seen once in some forty runs; ray#31145).
    """
    if "ray" in sys.modules and ENDED in config.stash:
        config.get_terminal_writer().flush()
        os._exit(config.stash[ENDED])


@pytest.fixture
def never_overdue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of this process send what is late instead of missing it: a busy machine is late."""
    from loadgen.fleet import worker
    from tests.support.machine.patience import PATIENCE_NS

    monkeypatch.setattr(worker, "MISSED_AFTER_NS", PATIENCE_NS)


@pytest.fixture(scope="session")
def session_of_process() -> Iterator[SharedSession]:
    """The Ray session of this process, for `shared_session`."""
    shared = SharedSession()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def shared_session(
    session_of_process: SharedSession, request: pytest.FixtureRequest
) -> Iterator[SharedSession]:
    """The Ray session of this process; it ends with a file of which a test failed.

    An application or a load actor that a failure leaves holds the GPUs or the CPU that the next file needs.
    """
    before = request.session.testsfailed
    yield session_of_process
    if request.session.testsfailed > before:
        session_of_process.close()


@pytest.fixture(scope="module")
def standing(shared_session: SharedSession) -> "Session":
    """Ray with Serve behind HAProxy and one pretended node of eight GPUs, as commands open it."""
    one = Cluster("one node", session="local", nodes=1, gpus_per_node=8)
    return shared_session.of(one, Routing("consistent_hash"))


@pytest.fixture(scope="module")
def ray_session(shared_session: SharedSession) -> "Session":
    """Ray with Serve behind HAProxy: a head for load actors and two fake nodes of eight GPUs."""
    return shared_session.fake()


@pytest.fixture(scope="module")
def ray_alone(shared_session: SharedSession) -> "Session":
    """Ray without Serve: a head for load actors, and two nodes that may be killed."""
    return shared_session.of(Cluster("doomed", session="fake", nodes=2, gpus_per_node=1), None)


@pytest.fixture(scope="module")
def no_session(shared_session: SharedSession) -> None:
    """No Ray session, for tests that open their own."""
    shared_session.close()


@pytest.fixture(scope="session")
def golden_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the golden run."""
    from analysis import report
    from tests.support.runs.golden import GOLDEN

    out = tmp_path_factory.mktemp("golden") / "report.html"
    report.command([GOLDEN], out)
    return out
