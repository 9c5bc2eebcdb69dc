"""`cluster.deployment.serve_state`: last words of processes, bounded, without secrets, and explained."""

import os
from pathlib import Path

import pytest

from cluster.deployment import serve_state as words
from conf.io.one_line import one_line
from conf.io.secret import masked

CAUSES = {
    "*** SIGILL received at time=1795408567 on cpu 0 ***": "illegal instruction",
    "Fatal Python error: Illegal instruction": "illegal instruction",
    "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory": "out of memory",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.": "out of memory",
    "ValueError: No available memory for the cache blocks.": "out of memory",
    "OSError: [Errno 98] Address already in use": "port in use",
    "OSError: /models/x does not appear to have a file named config.json": "model folder",
    "Repo id must be in the form 'repo_name' or 'namespace/repo_name'": "model folder",
    "OSError: [Errno 28] No space left on device": "disk full",
    "RuntimeError: Failed to infer device type": "no GPU",
}
GUESS = "Some common causes include: (1) the process was killed by the OOM killer due to out of memory"


@pytest.mark.parametrize("line", CAUSES)
def test_a_usual_cause_is_named_with_the_line_that_shows_it(line: str) -> None:
    found = words.why(["begins", line, "  File x.py, line 3 in f"])
    assert found.startswith(CAUSES[line]) and line in found


def test_of_other_ends_the_last_error_is_told_and_of_none_nothing() -> None:
    assert words.why(["ValueError: first", "KeyError: 'last'", "  in f"]) == "KeyError: 'last'"
    assert words.why(["loading", GUESS]) == ""


def test_the_newest_processes_of_the_application_are_read(tmp_path: Path) -> None:
    def write(name: str, app: str, text: str, at_s: int) -> None:
        (tmp_path / name).write_text(f":job_id:01\n:actor_name:ServeReplica:{app}:It\n{text}\n")
        os.utime(tmp_path / name, (at_s, at_s))

    write("worker-a-01-1.err", "ours", "older", 10)
    write("worker-b-01-2.err", "ours", "\n".join(f"line {number}" for number in range(1000)), 20)
    write("worker-c-01-3.err", "other", "newest", 30)
    write("worker-c-01-3.out", "ours", "", 30)
    write("worker-b-01-2.out", "ours", "on stdout", 20)
    (tmp_path / "raylet.err").write_text(":actor_name:ServeReplica:ours:It\nno worker\n")
    found = words.read_logs(tmp_path, "ours")
    assert found["worker-b-01-2.err"] == [f"line {number}" for number in range(1000 - words.LINES, 1000)]
    assert found["worker-b-01-2.out"] == ["on stdout"]
    assert list(found) == ["worker-b-01-2.err", "worker-a-01-1.err", "worker-b-01-2.out"]


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("\x1b[31mred\x07 \u202eword", " [31mred word"),
        ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
        ("login with hf_abcdefghijkl now", "login with *** now"),
        ("HF says very-secret-words twice: very-secret-words", "HF says *** twice: ***"),
        ("GET http://user:word@host/path", "GET http://***@host/path"),
        ("x" * 10_000, "x" * words.LETTERS + " ..."),
    ],
)
def test_a_line_is_printable_bounded_and_without_secrets(line: str, kept: str) -> None:
    environment = {"HF_TOKEN": "very-secret-words", "SORT_KEY": "now", "PATH": "twice"}
    assert one_line(masked(line, environment), words.LETTERS) == " ".join(kept.split())
