"""Run folders that a stranger made or spoilt, read by analysis and loadgen: one line, no damage."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from analysis import __main__ as reading
from analysis import load_run
from analysis.results.figures import RequestCounts
from analysis.rows import records
from conf import load
from conf.compose import dump
from loadgen import __main__ as loading
from loadgen.cli import measuring, output
from loadgen.fleet.arrow_stream import ArrowStream
from loadgen.run.run_folder import LinkError, RunFolder
from tests.support.runs.golden import GOLDEN, unsealed, write_json
from tests.support.virtual.virtual_drivers import silent

battery = pytest.mark.battery("hostile folder")
FOLDERS = yaml.safe_load((GOLDEN.parent / "odd_folders.yaml").read_text())
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A copy of the golden run to spoil."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden_run"))


@pytest.fixture(autouse=True)
def drawn_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their figures, which take seconds."""
    monkeypatch.setattr("analysis.figures.EXHIBITS", ())


def edited(run: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    tree = json.loads((run / name).read_text())
    change(tree)
    write_json(run / name, tree)


def certify(run: Path) -> None:
    edited(run, "sweep.json", lambda tree: tree["capacity"]["qps_per_node"].update(certified=9.04))


SPOILS: dict[str, Callable[[Path], object]] = {
    "certify": certify,
    "cut": lambda run: os.truncate(run / "windows.parquet", 3000),
    "lengthen": lambda run: shutil.copy(run / "requests/part-000.parquet", run / "requests/part-001.parquet"),
    "forget": lambda run: (run / "timeseries.parquet").unlink(),
}
READERS: dict[str, Callable[[Path], list[str]]] = {
    "show": lambda run: ["show", str(run)],
    "plan": lambda run: ["plan", str(run), "demand.peak_qps=20"],
    "compare": lambda run: ["compare", str(run), str(GOLDEN)],
    "export": lambda run: ["export", str(run), "--format", "csv"],
    "report": lambda run: ["report", str(run)],
}


@battery
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
@pytest.mark.parametrize("verb", READERS)
def test_who_reads_an_altered_run_says_so_and_fails(
    run: Path, verb: str, spoil: Callable[[Path], object], capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run)
    assert reading.main(READERS[verb](run)) == 1
    output = capsys.readouterr()
    banner = output.err if verb == "export" else output.out
    assert banner.startswith(f"ALTERED  {run} is not as it was written: ")
    if verb == "report" and (run / "report.html").exists():
        page = (run / "report.html").read_text()
        assert "ALTERED" in page and "certified 9.04" not in page


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("verb", READERS)
def test_a_run_as_it_was_written_or_without_sums_is_read_without_a_word_of_it(
    run: Path, verb: str, sealed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if not sealed:
        certify(unsealed(run))
    assert reading.main(READERS[verb](run)) == 0
    assert reading.main(READERS[verb](run)) == 0, "a report written later alters nothing"
    assert "ALTERED" not in "".join(capsys.readouterr())


def test_an_altered_run_claims_nothing_in_a_notebook(run: Path) -> None:
    assert load_run(run).capacity is not None
    certify(run)
    assert load_run(run).capacity is None
    assert load_run(run).altered == ("sweep.json is altered",)


@battery
@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("name", ["sweep.json", "manifest.json"])
def test_what_a_newer_version_wrote_is_left_to_it(
    run: Path, verb: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(unsealed(run), name, lambda tree: tree.update(schema_version=99))
    assert reading.main(READERS[verb](run)) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        f"error: {run / name} has schema_version 99, this version reads up to 1; open it "
    )
    assert error.count("\n") == 1


ODD: dict[str, tuple[list[str], dict[str, Any]]] = FOLDERS["conclusions"]
ODD |= {f"{name} is huge": ([], {name: 10**400}) for name in ("exit_code", "schema_version")}


@battery
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("verb", ["show", "plan", "report"])
def test_a_conclusion_of_odd_kinds_is_one_line(
    run: Path, verb: str, odd: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place, fields = ODD[odd]
    edited(unsealed(run), "sweep.json", lambda tree: reduce(getitem, place, tree).update(fields))
    code, output = reading.main(READERS[verb](run)), capsys.readouterr()
    assert code in (0, 1, 2, 4) and output.err.count("\n") <= 1 and "Traceback" not in output.err
    assert code == 0 or output.err.startswith("error: ") or verb == "plan"


@battery
@pytest.mark.parametrize("tree", FOLDERS["studies"].values(), ids=FOLDERS["studies"])
def test_a_study_of_odd_kinds_is_one_line(
    tmp_path: Path, tree: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "study.json", tree)
    shutil.copy(GOLDEN / "config.yaml", tmp_path)
    words = READERS["show"](tmp_path), READERS["report"](tmp_path), READERS["plan"](tmp_path)
    assert all(reading.main(each) in (1, 2, 4) for each in words)
    assert loading.main(["resume", str(tmp_path), "--dry-run"]) in (0, 1, 2)
    assert all(line.startswith("error: ") for line in capsys.readouterr().err.splitlines())


CONFIGS = {
    **FOLDERS["configurations"],
    "nested aliases": BOMB,
    "nested aliases of empty texts": BOMB.replace("x", "''").partition("g: ")[0],
    "deep": "[" * 100_000,
    "long": f"a: {'x' * 2**22}",
    "a number of 5000 digits": f"seed: {'9' * 5000}",
}


@battery
@pytest.mark.parametrize("config", CONFIGS)
def test_a_configuration_of_a_stranger_is_refused_in_few_words(
    run: Path, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.yaml").write_text(CONFIGS[config])
    assert loading.main(["sweep", "--config", str(run / "config.yaml"), "--dry-run"]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(("error: cannot read ", f"error: {run / 'config.yaml'}: "))
    assert all(line.startswith("error: ") for line in output.err.splitlines()) and len(output.err) < 1200
    assert reading.main(["report", str(unsealed(run))]) == 0
    assert capsys.readouterr().err == ""


@battery
@pytest.mark.parametrize("name", ["manifest.json", "sweep.json", "config.yaml", "events.jsonl"])
def test_a_pipe_in_a_folder_keeps_nobody_waiting(
    run: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)
    code = loading.main(["resume", str(run), "--dry-run"])
    assert code in (1, 2) and capsys.readouterr().err.count("\n") == 1


LINKS = ["shards", "schedule", "requests", "shards/client-00.arrow", "events.jsonl", "manifest.json.tmp"]


@battery
@pytest.mark.parametrize("name", LINKS)
def test_no_link_leads_a_session_out_of_its_folder(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outside, path = tmp_path / "outside", begun(tmp_path)
    outside.mkdir()
    for inside in ("client-00.arrow", "from-000000000.parquet", "part-000.parquet"):
        (outside / inside).write_text("precious")
    target = outside / "client-00.arrow" if "." in name else outside
    shutil.rmtree(path / name) if (path / name).is_dir() else (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(target)
    assert loading.main(["resume", str(path), "--dry-run"]) in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(LinkError, match="is a link; nothing is written through it"):
        RunFolder(path)
    assert {file.read_text() for file in outside.iterdir()} == {"precious"} and len(
        list(outside.iterdir())
    ) == 3


def begun(tmp_path: Path) -> Path:
    """The folder of a sweep that was killed: a shard, no conclusion."""
    folder = RunFolder.create(tmp_path, "killed")
    folder.write_json("manifest.json", {"verb": "sweep"})
    shutil.copy(GOLDEN / "config.yaml", folder.path)
    for name in ("schedule", "requests"):
        (folder.path / name).mkdir()
    shard(folder.path, 0, 1)
    folder.close()
    return folder.path


def shard(path: Path, *seqs: int) -> Path:
    rows = [{"seq": seq, "due_ns": seq, "status": "ok", "client_id": 0} for seq in seqs]
    written = ArrowStream(path / "shards" / "client-00.arrow")
    for batch in pa.Table.from_pylist(rows, schema=records.SHARD).to_batches():
        written.append(batch)
        written.flush()
    written.close()
    return written.path


SPOILT = {
    "garbage": lambda whole: b"garbage of a stranger",
    "garbage at the end": lambda whole: whole + b"garbage",
    "garbage within": lambda whole: whole[:-200] + b"\x7f" * 100 + whole[-100:],
    "another schema": lambda whole: foreign(),
}


def foreign() -> bytes:
    """A stream of something else."""
    sink, table = pa.BufferOutputStream(), pa.table({"seq": ["a"], "due_ns": [None]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


@battery
@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_shard_that_cannot_be_read_is_kept_aside_and_named(tmp_path: Path, spoilt: str) -> None:
    path = begun(tmp_path)
    file = path / "shards" / "client-00.arrow"
    content = SPOILT[spoilt](file.read_bytes())
    file.write_bytes(content)
    (path / "shards" / "notes.arrow").write_bytes(b"mine")
    folder = RunFolder(path)
    folder.collect()
    assert folder.unreadable == ["shards/unreadable-client-00.arrow"]
    assert (path / folder.unreadable[0]).read_bytes() == content
    assert (path / "shards" / "notes.arrow").read_bytes() == b"mine"
    folder.close()
    again = RunFolder(path)
    again.collect()
    assert again.unreadable == folder.unreadable and load_run(path).is_collected
    again.close()


@pytest.mark.parametrize("tail", [b"", b"\0" * 64, b"\xff", b"\xff\xff\xff\xff\x00\x01"])
def test_the_torn_end_of_a_kill_is_no_damage(tmp_path: Path, tail: bytes) -> None:
    path = begun(tmp_path)
    with (path / "shards" / "client-00.arrow").open("ab") as file:
        file.write(tail)
    folder = RunFolder(path)
    assert folder.collect()["seq"].to_pylist() == [0, 1]
    assert not folder.unreadable and not folder.shards.exists()
    folder.close()


def test_a_copy_by_hard_links_leaves_the_log_of_the_first_alone(tmp_path: Path) -> None:
    path = begun(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy, copy_function=os.link)
    folder = RunFolder(copy)
    folder.event("resumed")
    folder.close()
    assert "resumed" not in (path / "events.jsonl").read_text()
    assert "resumed" in (copy / "events.jsonl").read_text()


def test_a_copied_run_gets_its_report_where_it_lies(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    original = Path(shutil.copytree(run, tmp_path / "runs" / "golden_run"))
    verdict = output.with_report(measuring.resume(run, None, silent))  # type: ignore[arg-type]
    output.write_report(verdict)
    assert verdict.folder == str(run) and verdict.report == str(run / "report.html")
    assert (run / "report.html").exists() and not (original / "report.html").exists()
    assert f"{run}/config.yaml" in (run / "report.html").read_text()


def test_a_failed_start_gets_no_report_of_nothing(run: Path) -> None:
    verdict = load_run(run).verdict
    assert verdict
    failed = replace(verdict, folder=str(run), requests=RequestCounts(0, 0, {}))
    assert output.with_report(failed) == failed
    output.write_report(failed)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("name", ["007", "1e3", "2026_11_23", "yes", "0x10", "12:30"])
def test_a_name_is_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = load([f"run={name}", f"out={name}", f"target.api_key_env={name}"])
    assert (experiment.run, experiment.out, experiment.target.api_key_env) == (name, name, name)
    (tmp_path / "config.yaml").write_text(dump(experiment))
    assert load(base=tmp_path / "config.yaml") == experiment


@battery
@pytest.mark.parametrize("files", [[], {"../../x": "0"}, {"sweep.json": 5}, {"/etc/passwd": "0"}, "x"])
def test_sums_that_are_none_are_said(run: Path, files: Any, capsys: pytest.CaptureFixture[str]) -> None:
    edited(run, "manifest.json", lambda tree: tree.update(files=files))
    assert reading.main(["show", str(run)]) == 1
    assert "is not as it was written" in capsys.readouterr().out
