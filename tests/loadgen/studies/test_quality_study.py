"""loadgen/studies/quality_study.py: both sides of a gate over real HTTP, its verdict, failing answers."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from analysis import report
from analysis.quality import answer_file, gate
from analysis.results import studies, summary
from analysis.results.json_border import to_tree
from analysis.results.verdicts import StudyVerdict
from conf import ConfigError, Experiment, load
from loadgen import __main__ as root
from loadgen.cli import measuring
from loadgen.cli.words import Command, refuse
from loadgen.fleet.target import Observation
from loadgen.run import lifecycle
from loadgen.run.jobs import Service, Site
from loadgen.search.window_plan import Start
from loadgen.studies.gate_questions import THREADS
from loadgen.studies.quality_study import QualityStudy
from loadgen.traffic.schedule import ArrivalSchedule
from tests.support.runs.verdict_trees import screen_of_folder as concluded
from tests.support.servers.threaded_server import AnsweringServer, answering
from tests.support.virtual.virtual_drivers import silent
from tests.support.virtual.virtual_fleet import VirtualFleet
from tests.support.words.words import over

WIDE = ["quality.load=idle", "quality.margin_nats=.2", "quality.margin_broken=.2", "quality.prompts=60"]
"""Margins that few prompts decide."""
VOCAB = load([]).model.vocab
TOKENS = 32
FLAT = {
    "token_ids": [0] * TOKENS,
    "logprobs": {"top_logprobs": [{f"token_id:{token}": -5.7 for token in range(20)}] * TOKENS},
}
"""An answer of random weights."""
HOSTILE = {"text": "<script>alert(1)</script>"}


class Sides:
    """Two servers, the one up that an experiment asks for by engine.max_num_seqs."""

    def __init__(self, a: AnsweringServer, b: AnsweringServer) -> None:
        self.servers = {1023: a, 1024: b}
        self.deployed: list[int] = []

    @contextmanager
    def service(self, experiment: Experiment, _emit: Any) -> Iterator[Service]:
        seats: int = experiment.engine.max_num_seqs  # type: ignore[attr-defined]
        self.deployed.append(seats)
        with answering(self.servers[seats]) as server:
            yield Service([server.url])

    @property
    def site(self) -> Site:
        return Site(lambda *_: (Start(4.0), None), self.service)


class PatientFleet(VirtualFleet):
    """Beside real questions: to wait busily for their answers would take the processor from them."""

    def run(self, schedule: ArrivalSchedule | None, until_ns: int) -> Observation:
        asking = any(thread.name.startswith(THREADS) for thread in threading.enumerate())
        if asking and until_ns > self._now_ns:
            time.sleep(0.02 if schedule else 0.005)
        return super().run(schedule, until_ns)


@pytest.fixture(autouse=True)
def virtual_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "LoadFleet", PatientFleet)


def experiments(out: Path, *words: str) -> tuple[Experiment, Experiment]:
    given = over([*WIDE, "run=gate", f"out={out}"], *words)
    a, b = (load([*given, f"engine.max_num_seqs={seats}"]) for seats in (1023, 1024))
    return a, b


def asked(out: Path, sides: Sides, *words: str) -> StudyVerdict:
    return measuring.run(QualityStudy(*experiments(out, *words)), sides.site, silent)


@dataclass(frozen=True, slots=True)
class Broken:
    """A gate that found a broken side: its folder, its verdict, and the two servers."""

    path: Path
    found: StudyVerdict
    sides: Sides


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> Broken:
    """The gate that several tests read, each in a copy."""
    out = tmp_path_factory.mktemp("broken")
    sides = Sides(
        AnsweringServer(VOCAB, fields=HOSTILE), AnsweringServer(VOCAB, defect=0.3, fields={"text": "b"})
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lifecycle, "LoadFleet", PatientFleet)
        return Broken(out / "gate", asked(out, sides), sides)


@pytest.fixture
def broken(asked_once: Broken, tmp_path: Path) -> Broken:
    """A copy of the gate in `tmp_path`."""
    return replace(asked_once, path=Path(shutil.copytree(asked_once.path, tmp_path / "gate")))


@pytest.mark.slow
def test_the_same_engine_is_the_same_and_a_broken_one_degraded_as_the_evidence_says_again(
    tmp_path: Path, broken: Broken
) -> None:
    good = asked(tmp_path / "good", Sides(AnsweringServer(VOCAB), AnsweringServer(VOCAB)))
    assert (good.exit_code, good.valid, good.passed) == (summary.EXIT_OK, True, True)
    bad, sides = broken.found, broken.sides
    assert (bad.exit_code, bad.valid, bad.passed) == (summary.EXIT_DEGRADED, True, False)
    assert bad.quality and bad.quality.prompts < 60
    # A was asked everything twice, after a trial, and B the same.
    prompts = [[tuple(one["prompt"]) for one in server.asked] for server in sides.servers.values()]
    assert len(prompts[0]) == 121 and len(set(prompts[0])) == 60
    assert set(prompts[1]) <= set(prompts[0])
    rule = experiments(tmp_path)[0].quality
    for path, found in ((tmp_path / "good" / "gate", good), (broken.path, bad)):
        evidence = answer_file.folder_evidence(path / "a", path / "b")
        assert gate.judge(evidence, rule) == found.quality == studies.load_verdict(path).quality
    told = concluded(broken.path)
    assert told.splitlines()[0].startswith("DEGRADED  ")
    assert "from A to B: engine.max_num_seqs 1023 -> 1024" in told and "0.2  neither" in told
    assert concluded(tmp_path / "good" / "gate").startswith("SAME  ")


@pytest.mark.slow
def test_a_degraded_side_is_shown_on_the_page(broken: Broken) -> None:
    page = report.write(broken.path).read_text()
    for shown in (
        "DEGRADED",
        "Answers of b beside a",
        "above the margin",
        "figure-b-quality_gate",
        "figure-b-quality_positions",
        "The worst prompts side by side",
        "&lt;script&gt;",
    ):
        assert shown in page
    assert "<script>" not in page


@pytest.mark.slow
def test_recorded_answers_are_judged_as_they_were_and_those_to_other_prompts_are_refused(
    tmp_path: Path, broken: Broken, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(tmp_path, Sides(AnsweringServer(VOCAB), AnsweringServer(VOCAB)), "seed=7", "run=other")
    sides = [str(broken.path / name) for name in "ab"]
    assert root.main(["quality", *sides, "--json"]) == summary.EXIT_DEGRADED
    printed = json.loads(capsys.readouterr().out)
    assert printed["quality"] == to_tree(broken.found)["quality"]
    assert root.main(["quality", sides[0], sides[0]]) == summary.EXIT_OK
    assert capsys.readouterr().out.startswith("SAME  ")
    for words, why in (
        ([sides[0], str(tmp_path / "other" / "b")], "was not asked prompt"),
        ([sides[1], sides[0]], "was not asked prompt"),
        ([sides[0], str(tmp_path)], "is not a run folder"),
        ([sides[0]], "takes two folders"),
    ):
        assert root.main(["quality", *words]) == summary.EXIT_USAGE
        assert why in capsys.readouterr().err


@pytest.mark.slow
def test_answers_that_fail_are_counted_and_too_many_leave_the_gate_undecided(tmp_path: Path) -> None:
    few = Sides(AnsweringServer(VOCAB), AnsweringServer(VOCAB, fails=frozenset({5})))
    result = asked(tmp_path / "few", few)
    assert result.quality and (result.quality.verdict, result.quality.failed["candidate"]) == ("SAME", 1)
    none = Sides(AnsweringServer(VOCAB), AnsweringServer(VOCAB, fails=frozenset(range(1, 99))))
    result = asked(tmp_path / "none", none)
    assert (result.exit_code, result.passed) == (summary.EXIT_OPEN, False)
    assert result.quality and result.quality.verdict == "UNDECIDED"
    assert "unanswered" in result.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"logprobs": None}, "no alternatives"),
        ({"token_ids": None}, "no list of token ids"),
        ({"logprobs": {"top_logprobs": [{"token_id:1": -0.1}]}}, "alternatives of 1"),
        (FLAT, "hold only 7% of the probability"),
    ],
)
def test_a_service_whose_answers_cannot_be_compared_is_refused_before_it_is_loaded(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    sides = Sides(AnsweringServer(VOCAB, fields=fields), AnsweringServer(VOCAB))
    result = asked(tmp_path, sides, "quality.load=1")
    assert (result.exit_code, result.valid) == (summary.EXIT_TARGET, False)
    assert why in result.reason and "\n" not in result.reason
    assert len(sides.servers[1023].asked) == 1 and sides.deployed == [1023]
    assert result.requests is not None and result.requests.rows == 0


@pytest.mark.slow
def test_a_side_that_writes_the_same_tokens_as_another_text_has_another_tokenizer(tmp_path: Path) -> None:
    ours, theirs = (AnsweringServer(VOCAB, fields={"text": text}) for text in ("a word", "another one"))
    result = asked(tmp_path, Sides(ours, theirs))
    assert (result.exit_code, result.valid) == (summary.EXIT_TARGET, False)
    assert "other tokenizers" in result.reason
    assert len(theirs.asked) == 1


def test_a_service_that_drafts_tokens_is_refused_before_anything_starts() -> None:
    words = ["engine.args.speculative_config={num_speculative_tokens: 2}", "workload.tokenizer=model"]
    experiment = load([*words, "engine=vllm", "cluster=mi325x_1n"])
    with pytest.raises(ConfigError, match=r"engine\.args\.speculative_config: .* no drafted tokens"):
        refuse(Command("quality", experiment))


@pytest.mark.slow
def test_a_gate_that_was_cut_short_goes_on_with_the_side_that_is_missing(tmp_path: Path) -> None:
    class Gone(Sides):
        def service(self, experiment: Experiment, emit: Any) -> Any:
            if experiment.engine.max_num_seqs == 1024:  # type: ignore[attr-defined]
                raise KeyboardInterrupt
            return super().service(experiment, emit)

    assert asked(tmp_path, Gone(AnsweringServer(VOCAB), AnsweringServer(VOCAB))).exit_code == (
        summary.EXIT_INTERRUPTED
    )
    path, sides = tmp_path / "gate", Sides(AnsweringServer(VOCAB), AnsweringServer(VOCAB))
    assert measuring.left(path).endswith("1 of 2 parts have ended; left: b")
    result = measuring.resume(path, sides.site, silent)
    assert (result.exit_code, sides.deployed) == (summary.EXIT_OK, [1024])
