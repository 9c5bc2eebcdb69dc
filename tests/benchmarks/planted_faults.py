"""Plants one-line faults in the product, one at a time, and counts the tests that catch each.

A fault replaces one line of one function (`planted_faults.csv` lists them). One process collects the tests of
`make test` that need no Ray. A first pass notes which tests call which of the functions. Then each fault is
planted in a forked process, which runs the tests that reach the function: a test that fails or hangs there
catches the fault. A catch counts only if the test passes in another fork without the fault.

    python -m tests.benchmarks.planted_faults
    python -m tests.benchmarks.planted_faults --sample 20 --seed 7
    python -m tests.benchmarks.planted_faults --only quantile --tests tests/analysis/stats

Exit code: 0 if each fault is caught, 1 if one is caught by no test (HOLE), 2 if the list no longer fits the
code. What a test starts as another process runs without the fault, and compiled functions take none.
"""

import argparse
import ast
import builtins
import contextlib
import functools
import gc
import hashlib
import importlib
import inspect
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from hypothesis import settings

from tests.benchmarks._planted import FAULTS, Fault

ROOT = Path(__file__).parents[2]
CIRCLE = "not slow and not ray and not live and not vllm"
"""The tests of `make test` that need no Ray."""
TEST_LIMIT_S, SILENCE_S = 60, 120
"""Seconds after which a test counts as hanging, and a process in which even that limit did not help."""
ENOUGH = 5
"""Catches after which no further test is tried."""
RECORDER = "_reaches_planted_fault"
CAUGHT, STARTED, REACHED, DONE = "caught", "started", "reached", "done"
FORK = multiprocessing.get_context("fork")

Reach = dict[str, list[str]]
"""Ids of the tests that call a function, in the order of collection."""


class StaleFault(Exception):
    """A fault that no longer fits the code."""


# The code of a function, with a fault or with a note of each call.


def find(fault: Fault) -> tuple[ast.Module, ast.FunctionDef | ast.AsyncFunctionDef, list[str]]:
    """Syntax tree and lines of the fault's module, and the function in it. Raises StaleFault."""
    path = ROOT.joinpath(*fault.module.split(".")).with_suffix(".py")
    path = path if path.exists() else path.with_suffix("") / "__init__.py"
    if not path.exists():
        raise StaleFault(f"{fault.name}: no module {fault.module}")
    text = path.read_text()
    tree = ast.parse(text)
    nodes: list[Any] = [tree]
    for name in fault.function.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        nodes = [
            child for node in nodes for child in node.body if isinstance(child, kinds) and child.name == name
        ]
    if len(nodes) != 1:
        raise StaleFault(f"{fault.name}: {fault.module} has {len(nodes)} functions {fault.function}")
    return tree, nodes[0], text.splitlines(keepends=True)


def faulted(fault: Fault) -> CodeType:
    """The function's code with the fault in it. Raises StaleFault."""
    _, node, lines = find(fault)
    start, end = node.lineno - 1, node.end_lineno
    body = "".join(lines[start:end])
    if body.count(fault.old) != 1:
        count = body.count(fault.old)
        raise StaleFault(f"{fault.name}: {fault.where} has {count} times the text {fault.old!r}")
    if "\n" in fault.old + fault.new:
        raise StaleFault(f"{fault.name}: a fault is one line")
    text = "".join(lines[:start]) + body.replace(fault.old, fault.new) + "".join(lines[end:])
    return _code(compile(text, f"{fault.module} with {fault.name}", "exec", dont_inherit=True), fault)


def recorded(fault: Fault) -> CodeType:
    """The function's code with a note of each call before its first statement."""
    tree, node, _ = find(fault)
    node.body.insert(0, ast.parse(f"{RECORDER}({fault.where!r})").body[0])
    return _code(compile(ast.fix_missing_locations(tree), fault.module, "exec", dont_inherit=True), fault)


def _code(code: CodeType, fault: Fault) -> CodeType:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    for const in inner:
        if const.co_qualname == fault.function:
            return const
        if fault.function.startswith(f"{const.co_qualname}."):
            return _code(const, fault)
    raise StaleFault(f"{fault.name}: no code of {fault.where}")


def function_of(fault: Fault) -> FunctionType:
    """The function below its decorators. Raises StaleFault."""
    find(fault)
    held: Any = importlib.import_module(fault.module)
    for name in fault.function.split("."):
        held = inspect.getattr_static(held, name)
    if isinstance(held, property):
        held = held.fget
    held = getattr(held, "func", held)  # functools.cached_property
    held = inspect.unwrap(getattr(held, "__func__", held))  # staticmethod and classmethod
    if not isinstance(held, FunctionType):
        raise StaleFault(f"{fault.name}: {fault.where} is compiled or no function")
    if held.__code__.co_freevars != faulted(fault).co_freevars:
        raise StaleFault(f"{fault.name}: {fault.where} would need other variables of the function around it")
    return held


def plant(fault: Fault, code: Callable[[Fault], CodeType]) -> None:
    """Give the function other code. Every name for the function sees that, wherever imported."""
    function_of(fault).__code__ = code(fault)


@functools.cache
def caches() -> list[Any]:
    """The caches of functions of ours: a filled one would hide a fault from all but the first test."""
    rooms = {fault.room for fault in FAULTS} | {"tests"}
    held = [
        get_object for get_object in gc.get_objects() if isinstance(get_object, functools._lru_cache_wrapper)
    ]
    return [cached for cached in held if (cached.__module__ or "").split(".")[0] in rooms]


# One process: the tests with or without a fault.


@dataclass(eq=False)
class Tester:
    """Runs tests in this forked process and sends what happens to the parent."""

    session: pytest.Session
    pipe: Connection
    recording: bool = False
    failed: set[str] = field(default_factory=set)
    here: str = ""
    fixtures: list[pytest.FixtureDef[Any]] = field(default_factory=list)
    notes: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    def run(self, items: Sequence[pytest.Item]) -> None:
        """Run tests until `ENOUGH` of them have failed."""
        self.session.config.pluginmanager.register(self)
        for item, following in zip(items, [*items[1:], None], strict=True):
            if len(self.failed) >= ENOUGH and not self.recording:
                break
            self.here = item.nodeid
            self.pipe.send((STARTED, item.nodeid))
            for cached in caches():
                cached.cache_clear()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send the id of a test that failed, once."""
        if report.failed and report.nodeid not in self.failed:
            self.failed.add(report.nodeid)
            self.pipe.send((CAUGHT, report.nodeid))

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        """Note which fixture is being made: all tests that use it reach what it calls."""
        self.fixtures.append(fixturedef)
        try:
            return (yield)
        finally:
            self.fixtures.pop()

    def note(self, where: str) -> None:
        """Note that a function was called."""
        for made in self.fixtures:
            if made.scope != "function":
                self.notes[where].add((made.baseid, made.argname))
        self.notes[where].add((self.here, ""))

    def reach(self, items: Sequence[pytest.Item]) -> Reach:
        """Ids of the tests that call each function, by themselves or by a fixture."""
        reach = {}
        for where, notes in self.notes.items():
            reach[where] = [
                item.nodeid
                for item in items
                if (item.nodeid, "") in notes
                or any(
                    name and item.nodeid.startswith(base) and name in _fixtures(item) for base, name in notes
                )
            ]
        return reach


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())


def child(
    session: pytest.Session,
    pipe: Connection,
    items: Sequence[pytest.Item],
    faults: Sequence[Fault],
    record: bool,
) -> None:
    """Plant faults, or record their functions' calls, and run tests: the whole of a forked process."""
    os.setsid()
    folder = tempfile.mkdtemp(prefix="planted-")
    os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    tester = Tester(session, pipe, recording=record)
    setattr(builtins, RECORDER, tester.note)
    try:
        for fault in faults:
            plant(fault, recorded if record else faulted)
        tester.run(items)
        if record:
            pipe.send((REACHED, tester.reach(items)))
        pipe.send((DONE, ""))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# The parent: collects, forks, counts.


@dataclass(eq=False)
class Job:
    """A forked process that runs tests, and what is known of it."""

    ended: Callable[["Job"], Sequence["Job"]]
    items: Sequence[pytest.Item]
    faults: Sequence[Fault] = ()
    record: bool = False
    caught: list[str] = field(default_factory=list)
    reach: Reach = field(default_factory=dict)
    here: str = ""
    heard_s: float = 0.0
    process: Any = None
    pipe: Any = None

    def start(self, session: pytest.Session) -> None:
        """Fork."""
        self.pipe, theirs = FORK.Pipe(duplex=False)
        given = (session, theirs, self.items, self.faults, self.record)
        self.process = FORK.Process(target=child, args=given)
        self.process.start()
        theirs.close()
        self.heard_s = time.monotonic()

    def listen(self) -> bool:
        """Take in one message; False once the process is done, has died, or hangs."""
        try:
            kind, what = self.pipe.recv() if self.pipe.poll() else ("", "")
        except EOFError:
            return self._lost()
        if not kind:
            return self._lost() if time.monotonic() - self.heard_s > SILENCE_S else True
        self.heard_s = time.monotonic()
        if kind == STARTED:
            self.here = what
        elif kind == CAUGHT:
            self.caught.append(what)
        elif kind == REACHED:
            self.reach = what
        return kind != DONE

    def _lost(self) -> bool:
        """A test with which the process hangs or dies catches the fault."""
        if self.here and self.here not in self.caught:
            self.caught.append(self.here)
        return False

    def end(self) -> None:
        """Leave no process of this job behind."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        self.pipe.close()


def work_off(session: pytest.Session, waiting: list[Job], at_once: int) -> None:
    """Run jobs, so many side by side, and those that they lead to."""
    running: list[Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(waiting.pop(0))
                running[-1].start(session)
            wait([job.pipe for job in running], timeout=1.0)
            for job in [job for job in running if not job.listen()]:
                job.end()
                running.remove(job)
                waiting[:0] = job.ended(job)
    finally:
        for job in running:
            job.end()


@dataclass(eq=False)
class Planter:
    """Plugin that runs the faults in place of pytest's own loop over the tests."""

    faults: Sequence[Fault]
    at_once: int
    only_map: bool = False
    caught: dict[str, list[str]] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Make Hypothesis try the same examples each time, with no memory of failures."""
        settings.register_profile(
            "planted", settings.get_profile("any machine"), derandomize=True, database=None
        )
        settings.load_profile("planted")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Plant every fault, print the table, and let holes fail the session."""
        caches()
        items = {item.nodeid: item for item in session.items}
        known, failed = reach_of(session, self.at_once)
        if self.only_map:
            return True
        jobs = []
        for fault in self.faults:
            tests = [items[test] for test in known.get(fault.where, []) if test not in failed]
            tests.sort(key=partial(_distance, fault))
            self.reached[fault.name] = len(tests)
            self.caught[fault.name] = []
            if tests:
                jobs.append(Job(partial(self._verify, fault), tests, [fault]))
            else:
                self._print(fault)
        print(f"{'fault':<46} {'room':<12} {'reach':>6} {'catch':>6}")
        work_off(session, jobs, self.at_once)
        session.testsfailed = self._conclude(failed)
        return True

    def _verify(self, fault: Fault, job: Job) -> Sequence[Job]:
        """Try the tests that failed once more without the fault."""
        tests = {item.nodeid: item for item in job.items}

        def verified(control: Job) -> Sequence[Job]:
            self.caught[fault.name] = [test for test in job.caught if test not in control.caught]
            self._print(fault)
            return ()

        control = Job(verified, [tests[test] for test in job.caught if test in tests])
        return [control] if control.items else verified(control)

    def _print(self, fault: Fault) -> None:
        count, tests = len(self.caught[fault.name]), self.caught[fault.name]
        figure = f"{count}+" if count >= ENOUGH else str(count) if count else "HOLE"
        alone = f"  {tests[0]}" if count == 1 else ""
        print(
            f"{fault.name:<46} {fault.room:<12} {self.reached[fault.name]:>6} {figure:>6}{alone}", flush=True
        )

    def _conclude(self, failed: Sequence[str]) -> int:
        counts = [len(tests) for tests in self.caught.values()]
        for test in failed:
            print(f"left out, as it fails without any fault: {test}")
        caught, alone = sum(count > 0 for count in counts), sum(count == 1 for count in counts)
        print(f"caught {caught} of {len(counts)}; caught by one test only: {alone}", flush=True)
        return len(counts) - caught


def _distance(fault: Fault, item: pytest.Item) -> int:
    """The tests of the fault's own folder come first: most catches are there."""
    folders = ["tests", *fault.module.split(".")[:-1]]
    return -len(os.path.commonprefix([folders, list(item.path.parent.relative_to(ROOT).parts)]))


# The map of what reaches what, which costs one pass over all tests.


def reach_of(session: pytest.Session, at_once: int) -> tuple[Reach, list[str]]:
    """The tests that reach each function, and those that fail without any fault.

    What is known of a file of tests is kept until that file, the product or the list of faults changes.
    """
    file = Path(tempfile.gettempdir()) / f"planted_faults_reach_{product_hash()}.json"
    known: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    items: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in session.items:
        items[item.path].append(item)
    keys = {path: f"{path.relative_to(ROOT)} {_digest([path])}" for path in items}
    left = [path for path in items if keys[path] not in known]
    if left:
        print(f"which of {sum(len(items[path]) for path in left)} tests reach what: one pass over them")

    def noted(path: Path, job: Job) -> Sequence[Job]:
        known[keys[path]] = {"reach": job.reach, "failed": job.caught}
        file.write_text(json.dumps(known))
        return ()

    functions = tuple({fault.where: fault for fault in FAULTS}.values())
    jobs = [Job(partial(noted, path), items[path], functions, record=True) for path in left]
    work_off(session, jobs, at_once)
    reach: Reach = defaultdict(list)
    for key in keys.values():
        for where, tests in known[key]["reach"].items():
            reach[where] += tests
    return reach, [test for key in keys.values() for test in known[key]["failed"]]


def product_hash() -> str:
    """Hash of the faulted functions' names, and of the files of the product and of what tests share."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    ours = [name for name in names if name.endswith((".py", ".yaml", ".toml"))]
    own = [ROOT / name for name in ours if "/test_" not in name and not name.startswith("tests/benchmarks")]
    return _digest(sorted(own), *sorted({fault.where for fault in FAULTS}))


def _digest(paths: Sequence[Path], *words: str) -> str:
    digest = hashlib.sha256(" ".join(words).encode())
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)} ".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()[:16]


def chosen(words: argparse.Namespace) -> list[Fault]:
    """The faults to plant."""
    faults = [fault for fault in FAULTS if words.only in fault.name]
    if words.sample:
        faults = random.Random(words.seed).sample(faults, min(words.sample, len(faults)))
    return faults


def main() -> int:
    """Check the list, then plant."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.planted_faults", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="faults whose name has this")
    parser.add_argument("--sample", type=int, metavar="N", help="so many faults, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    parser.add_argument("--list", action="store_true", help="print the faults and plant none")
    parser.add_argument("--tests", nargs="+", default=["tests"], metavar="PATH", help="these tests alone")
    parser.add_argument("--map", action="store_true", help="only note which tests reach what, for later runs")
    words = parser.parse_args()
    faults = chosen(words)
    stale = []
    for fault in FAULTS:
        try:
            function_of(fault)
        except StaleFault as error:
            stale.append(str(error))
    if words.list:
        for fault in faults:
            print(f"{fault.name:<46} {fault.room:<12} {fault.where}: {fault.old!r} -> {fault.new!r}")
    if stale or words.list:
        print("".join(f"stale fault: {line}\n" for line in stale), end="")
        return 2 if stale else 0
    os.chdir(ROOT)
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended from outside", 128 + signal.SIGTERM))
    planter = Planter(faults, words.jobs, words.map)
    # Plugins of pytest's that are imported already hold no assertions of ours.
    rewriting = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options = [
        *rewriting,
        "-q",
        "-s",
        "-m",
        CIRCLE,
        "-p",
        "no:cacheprovider",
        "-o",
        f"timeout={TEST_LIMIT_S}",
    ]
    return int(pytest.main([*options, *words.tests], plugins=[planter]))


if __name__ == "__main__":
    sys.exit(main())
