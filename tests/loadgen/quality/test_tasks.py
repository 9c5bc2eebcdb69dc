"""loadgen/quality/tasks.py: questions with exact answers, their file, their requests and real answers."""

from pathlib import Path

import pytest

from conf import ConfigError, load
from conf.io.access import Access
from conf.io.secret import Secret
from conf.specs.quality import Quality
from loadgen.cli import command_line
from loadgen.quality import tasks
from loadgen.quality.service import AskedService
from loadgen.quality.tasks import TaskService
from tests.support.quality.arithmetic import arithmetic, write
from tests.support.servers.task_server import TaskServer

KEY = "sk-0123456789abcdef"


def test_answers_are_right_wrong_or_failed(tmp_path: Path) -> None:
    made = arithmetic(6)
    wrong = str(int(made[1].answer) + 1)
    texts = {
        made[0].prompt: f"That makes {made[0].answer}.",
        made[1].prompt: f"That makes {wrong}.",
        made[2].prompt: 500,
        made[3].prompt: {"no": "text"},
        made[4].prompt: f"{made[4].answer} is for {{key}}: {made[4].answer}",
        made[5].prompt: "x" * 400_000,
    }
    asked = tasks.of(Quality(questions=str(write(made, tmp_path / "sums.jsonl"))))
    with TaskServer(texts) as server:
        one = TaskService(AskedService([server.url], Access(Secret(KEY)), "m", 32, 20.0), 50)
        found = [one.ask(task) for task in asked]
    assert [each.right for each in found] == [True, False, False, False, True, False]
    assert [each.question for each in found] == list(range(6))
    assert [each.sha256 for each in found] == [question.digest for question in made]
    assert found[1].text == f"That makes {wrong}." and found[1].error is None
    whys = [each.error or "" for each in found]
    assert "HTTP 500" in whys[2] and "answered no text" in whys[3] and "longer than" in whys[5]
    assert found[4].text and KEY not in found[4].text and KEY not in whys[2]
    assert all(body["max_tokens"] == 50 and body["temperature"] == 0 for body in server.asked)
    assert all("ignore_eos" not in body for body in server.asked)
    assert len({body["cache_salt"] for body in server.asked}) == 6
    assert tasks.words(found) == "6 questions with answers, 2 right, 3 failed"


def test_the_experiment_keeps_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(arithmetic(3), tmp_path / "sums.jsonl")
    monkeypatch.chdir(tmp_path)
    found = command_line.asked("quality", ["quality.questions=sums.jsonl"], None)
    assert found.quality.questions == str(file)


@pytest.mark.parametrize("verb", ["quality", "sweep", "compare"])
def test_a_bad_file_is_refused_before_anything_starts(tmp_path: Path, verb: str) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(ConfigError, match=r"quality.questions: questions .*bad.jsonl: line 1 lacks answer"):
        command_line.asked(verb, [f"quality.questions={tmp_path}/bad.jsonl", "quality.gate=true"], None)
    with pytest.raises(ConfigError, match="cannot read the questions"):
        command_line.asked(verb, [f"quality.questions={tmp_path}/none.jsonl", "quality.gate=true"], None)


def test_tokens_of_no_question_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"quality.question_tokens belongs to questions with exact answers"):
        command_line.asked("quality", ["quality.question_tokens=64"], None)


def test_a_verb_that_asks_nothing_needs_no_file() -> None:
    asked = load(["quality.questions=none.jsonl"])
    assert not tasks.asks(asked, "sweep") and not tasks.asks(asked, "predict")
    assert tasks.asks(asked, "quality")
    assert tasks.asks(load(["quality.questions=none.jsonl", "quality.gate=true"]), "sweep")
