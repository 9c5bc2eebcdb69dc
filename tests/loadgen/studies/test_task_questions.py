"""loadgen/studies/task_questions.py: questions with exact answers, whose scores stand beside the verdict."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.quality import answer_file, task_answers
from analysis.quality.gate_verdict import GateVerdict
from analysis.quality.paired_scores import PairedScores
from analysis.quality.questions import Question
from analysis.results import matrix_table, summary
from analysis.results.asked import describe
from analysis.results.json_border import from_tree, to_tree
from analysis.results.runs import RunError
from analysis.results.types.study_verdict import MatrixCell, StudyVerdict
from conf import ConfigError, Experiment
from conf.composed import dump
from loadgen.cli import quality_words
from loadgen.drive.driver import Driver
from loadgen.run.lifecycle import read_of
from loadgen.run.run_folder import sha256_of
from loadgen.run.service import Service
from loadgen.studies import quality_study, task_questions
from loadgen.studies.gate_evidence import judged, task_scores
from loadgen.studies.gate_questions import ServiceInUse
from loadgen.studies.gated_study import with_gates
from loadgen.studies.quality_study import GateSide
from tests.support.quality.arithmetic import arithmetic, write
from tests.support.servers.task_server import TaskServer
from tests.support.virtual import virtual_drivers

MADE = arithmetic(40)


def words(tmp_path: Path, load: str = "idle") -> list[str]:
    file = f"quality.questions={write(MADE, tmp_path / 'sums.jsonl')}"
    return [
        file,
        "quality.question_tokens=40",
        "quality.prompts=3",
        f"quality.load={load}",
    ]


def texts(wrong: int, failed: int = 0) -> dict[str, Any]:
    """Answers to all questions, the first of which are wrong, and the last of which fail."""
    said = {one.prompt: f"It is {one.answer}." for one in MADE}
    said |= {one.prompt: "I do not know" for one in MADE[:wrong]}
    return said | {one.prompt: 503 for one in MADE[len(MADE) - failed :]}


def side(path: Path, base: Path, answers: Mapping[str, Any], driver: Driver, asked: Experiment) -> str:
    """Ask one side everything; returns the evidence in words."""
    path.mkdir(exist_ok=True)
    (path / "config.yaml").write_text(dump(asked))
    in_use = ServiceInUse(lambda *_: pytest.fail("no service is started"))
    with TaskServer(answers) as server:
        in_use.up = Service([server.url])
        return GateSide(path, base, 1, in_use).ask(asked, driver)


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Experiment]:
    """Run folders a and b, asked all questions: A fails one, B has twelve wrong."""
    folder = tmp_path_factory.mktemp("both")
    driver, asked, _ = virtual_drivers.patient(words(folder))
    for name, answers in (("a", texts(0, failed=1)), ("b", texts(12))):
        side(folder / name, folder / "a", answers, driver, asked)
    return folder, asked


@pytest.fixture
def both(asked_once: tuple[Path, Experiment], tmp_path: Path) -> Experiment:
    """Their experiment; `tmp_path` has a copy of the folders."""
    folder, asked = asked_once
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return asked


SCORES = PairedScores(27, 12, 1, 0, base_failed=1)


def study(asked: Experiment, **more: Any) -> StudyVerdict:
    shown: dict[str, Any] = {"study": "quality", "names": ("a", "b"), "parts": (), "exit_code": None}
    return StudyVerdict(asked=describe(asked), valid=True, **(shown | more))


@pytest.mark.slow
def test_a_side_is_asked_its_token_questions_and_then_every_question_once(tmp_path: Path) -> None:
    driver, asked, _ = virtual_drivers.patient(words(tmp_path))
    said = side(tmp_path / "a", tmp_path / "a", texts(4, failed=2), driver, asked)
    assert "6 answers, 0 of them failed" in said
    assert said.endswith("; 40 questions with answers, 34 right, 2 failed")
    assert len(answer_file.read(tmp_path / "a" / answer_file.FILE)) == 6
    found = task_answers.read(tmp_path / "a" / task_answers.FILE)
    assert [one.question for one in found] == list(range(len(MADE)))
    assert [one.right for one in found] == [False] * 4 + [True] * 34 + [False] * 2
    assert found[0].text == "I do not know" and "HTTP 503" in (found[-1].error or "")


@pytest.mark.slow
def test_load_goes_on_beside_the_questions(tmp_path: Path) -> None:
    driver, asked, _ = virtual_drivers.patient(words(tmp_path, load="2"))
    side(tmp_path / "a", tmp_path / "a", texts(0), driver, asked)
    assert driver.feed.next_seq > 0


@pytest.mark.slow
def test_what_was_answered_is_written_whatever_ends_the_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, asked, _ = virtual_drivers.patient(words(tmp_path))
    known = task_questions.tasks.TaskService.ask
    calls = []

    def ask(self: Any, task: Any) -> Any:
        calls.append(task)
        if task.number == 20:
            raise KeyboardInterrupt
        return known(self, task)

    monkeypatch.setattr(task_questions.tasks.TaskService, "ask", ask)
    with pytest.raises(KeyboardInterrupt):
        side(tmp_path / "a", tmp_path / "a", texts(0), driver, asked)
    found = task_answers.read(tmp_path / "a" / task_answers.FILE)
    assert 0 < len(found) < len(MADE) and all(one.right for one in found)


@pytest.mark.slow
def test_without_a_file_nothing_is_asked(tmp_path: Path) -> None:
    driver, asked, _ = virtual_drivers.driver(["quality.prompts=3", "quality.load=idle"])
    side(tmp_path / "a", tmp_path / "a", {}, driver, asked)
    assert not (tmp_path / "a" / task_answers.FILE).exists()
    assert task_scores(tmp_path / "a", tmp_path / "a") is None


@pytest.mark.slow
def test_the_verdict_has_the_scores_and_its_word_is_that_of_the_divergence(
    tmp_path: Path, both: Experiment
) -> None:
    found = quality_study.conclude(study(both), tmp_path, both, both)
    assert found.scores == SCORES
    assert found.quality and found.quality.verdict == "UNDECIDED"  # three prompts show nothing
    shown = summary.text(found)
    assert "A has 97.5 % of 40 right, B 70.0 %; difference -27.5 points" in shown
    assert "McNemar's exact p 0.0034" in shown
    assert "unanswered, which counts as wrong: 1 by A, 0 by B" in shown
    assert "rests on the divergence alone" in shown
    tree = json.loads(json.dumps(to_tree(found)))
    scores = tree["scores"]
    assert scores["difference"] == pytest.approx(-0.275) and scores["p_value"] == pytest.approx(0.0034, 0.02)
    assert scores["interval"][0] < -0.275 < scores["interval"][1]
    assert from_tree(StudyVerdict, tree, "study.json") == found
    del tree["scores"]
    assert from_tree(StudyVerdict, tree, "study.json").scores is None


@pytest.mark.slow
def test_scores_that_no_gate_wrote_are_refused(tmp_path: Path, both: Experiment) -> None:
    written = to_tree(quality_study.conclude(study(both), tmp_path, both, both))
    for changed in ({"both": -1}, {"neither": 10**9}, {"base_failed": 99}):
        tree = written | {"scores": written["scores"] | changed}
        with pytest.raises(RunError, match="study.json is broken: its scores: .* are no counts"):
            from_tree(StudyVerdict, tree, "study.json")


@pytest.mark.slow
@pytest.mark.usefixtures("both")
def test_answers_on_record_are_scored_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "manifest.json").write_text(json.dumps({"schema_version": 1, "verb": "quality"}))
    found = quality_words.recorded(tmp_path / "a", tmp_path / "b")
    assert found.scores == SCORES
    task_answers.write([], tmp_path / "a" / task_answers.FILE)
    with pytest.raises(ConfigError, match="A was not asked question 0 of B"):
        quality_words.recorded(tmp_path / "a", tmp_path / "b")


def test_a_study_goes_on_with_the_same_questions_only(tmp_path: Path) -> None:
    _, asked, _ = virtual_drivers.patient(words(tmp_path))
    ((key, file),) = read_of(asked, "quality").items()
    assert not read_of(asked, "sweep")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "manifest.json").write_text(json.dumps({"schema_version": 1, key: sha256_of(file)}))
    in_use = ServiceInUse(lambda *_: pytest.fail("no service is started"))
    assert quality_study.of(asked, asked, tmp_path, in_use).names == ("a", "b")
    write([*MADE, Question("?", "!")], file)
    with pytest.raises(ConfigError, match="sums.jsonl is not what it was when .*/a began"):
        quality_study.of(asked, asked, tmp_path, in_use)


@pytest.mark.slow
def test_a_gate_after_sweeps_has_scores_in_a_comparison_and_in_each_cell(
    tmp_path: Path, both: Experiment
) -> None:
    gate: GateVerdict = judged(tmp_path, "a", "b", both.quality)
    scores = task_scores(tmp_path / "a", tmp_path / "b")
    compared = with_gates(study(both, study="compare"), {"b": gate}, {"b": scores})
    assert (compared.quality, compared.scores) == (gate, scores)
    cells = tuple(MatrixCell(name=name, at={"seed": name}, exit_code=0) for name in ("cell-1", "cell-2"))
    grid = study(both, study="matrix", axes=("seed",), cells=cells)
    found = with_gates(grid, {"cell-2": gate}, {"cell-2": scores})
    assert [cell.scores for cell in found.cells or ()] == [None, scores]
    assert "cell-1 has 97.5 % of 40 right, cell-2 70.0 %" in "\n".join(matrix_table.lines(found))
