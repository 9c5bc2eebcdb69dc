"""Where analysis.load_run and load_runs open runs, and what is said of what is none: never a zero."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from analysis import load_run, load_runs
from analysis.__main__ import main
from analysis.results import locations, recount, studies, tables
from analysis.results.runs import Run, RunError
from conf import ConfigError
from tests.support.runs.golden import GOLDEN, unsealed
from tests.support.runs.verdict_trees import screen_of_folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A copy of the golden run to spoil."""
    return Path(shutil.copytree(GOLDEN, tmp_path / "golden_run"))


def refused(act: Any, *words: Any, **more: Any) -> str:
    """What is said, in one line."""
    with pytest.raises((RunError, ConfigError)) as error:
        act(*words, **more)
    message = str(error.value)
    assert "\n" not in message and len(message) < 500
    return message


def in_memory(*files: str) -> fs.FileSystem:
    """A file system that is no disk, with these files of the golden run below `bucket/runs/one`."""
    made = fs._MockFileSystem()
    made.create_dir("bucket/runs/one/requests", recursive=True)
    made.create_dir("bucket/runs/one/schedule")
    for name in files:
        with made.open_output_stream(f"bucket/runs/one/{name}") as stream:
            stream.write((GOLDEN / name).read_bytes())
    return made


EVERY = [str(file.relative_to(GOLDEN)) for file in GOLDEN.rglob("*") if file.is_file()]


def test_a_run_is_opened_where_it_lies_by_path_and_by_file_uri() -> None:
    for place in (GOLDEN, str(GOLDEN), GOLDEN.as_uri()):
        run = load_run(place)
        assert (run.path, run.name) == (GOLDEN, "golden_run")


def test_the_name_of_a_folder_is_no_column(tmp_path: Path) -> None:
    run = load_run(shutil.copytree(GOLDEN, tmp_path / "window_index=7" / "replica=x"))
    golden = load_run(GOLDEN)
    assert run.requests().equals(golden.requests()) and run.timeseries().equals(golden.timeseries())
    assert run.windows().equals(golden.windows()) and run.clients().equals(golden.clients())


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> fs.FileSystem:
    """A file system that is no disk, which every URI leads to."""
    made = in_memory(*getattr(request, "param", EVERY))
    uris = SimpleNamespace(from_uri=lambda uri: (made, uri.removeprefix("mock:///")))
    elsewhere = SimpleNamespace(**(vars(fs) | {"FileSystem": uris}))
    monkeypatch.setattr(locations, "fs", elsewhere)
    return made


@pytest.mark.parametrize("trailing", ["", "/"])
def test_a_run_on_another_file_system_is_copied_and_is_the_same_run(bucket: Any, trailing: str) -> None:
    run, golden = load_run(f"mock:///bucket/runs/one{trailing}"), load_run(GOLDEN)
    assert run.path != GOLDEN and run.name == "one"
    assert run.verdict == replace(golden.verdict, folder=str(run.path)) and run.manifest == golden.manifest
    assert run.requests().equals(golden.requests()) and run.windows().equals(golden.windows())
    assert recount.recomputed(run)[1]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s4://bucket/run", "cannot be opened: Unrecognized filesystem type in URI: s4://bucket/run"),
        ("mock:///bucket/run", "cannot be opened: there is nothing"),
        ("file:///no/such/run", "is not a run folder: it has no manifest.json"),
    ],
)
def test_what_a_uri_does_not_lead_to_is_said(place: str, message: str) -> None:
    assert refused(load_run, place) == f"{place} {message}"


@pytest.mark.parametrize("bucket", [["config.yaml"]], indirect=True)
def test_a_folder_elsewhere_that_is_no_run_is_not_copied(bucket: Any) -> None:
    locations.fs.copy_files = None
    said = "is not a run folder: it has no manifest.json"
    for place in ("mock:///bucket/runs/one//", "mock:///bucket"):
        assert refused(load_run, place) == f"{place} {said}"
    assert (
        refused(load_run, "mock:///bucket/none") == "mock:///bucket/none cannot be opened: there is nothing"
    )


def study(folder: Path, *names: str, planned: tuple[str, ...] = ()) -> Path:
    for name in names:
        shutil.copytree(GOLDEN, folder / name)
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"names": [*names, *planned], "parts": []}))
    return folder


def test_several_runs_by_path_glob_and_study_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        shutil.copytree(GOLDEN, tmp_path / name)
    (tmp_path / "c").mkdir()
    (tmp_path / "report.html").touch()
    study(tmp_path / "d", "r10", "r2", planned=("r3",))
    monkeypatch.chdir(tmp_path)
    names = ["a", "b", "r10", "r2"]
    assert [run.name for run in load_runs("*")] == names, "in the study's order, without what has not begun"
    assert [run.name for run in load_runs(tmp_path / "*")] == names
    several = load_runs("b", tmp_path / "b", "[ab]", "d/r2", "d")
    assert [run.name for run in several] == ["b", "a", "r2", "r10"]
    assert [run.name for run in load_runs(GOLDEN.as_uri())] == ["golden_run"]


def test_several_runs_that_are_none(tmp_path: Path) -> None:
    holds_none = "holds no run folder; give one, a study, or a glob of them"
    assert refused(load_runs, tmp_path / "*") == f"{tmp_path}/* {holds_none}"
    empty = study(tmp_path / "study", planned=("a",))
    assert refused(load_runs, empty) == f"{empty} {holds_none}"
    assert refused(load_runs, tmp_path / "x") == f"{tmp_path}/x is not a run folder: it has no manifest.json"
    (empty / "study.json").write_text("{}")
    assert "study.json lacks the names of its parts" in refused(load_runs, empty)
    assert refused(load_run, empty).startswith(f"{empty} is a study, not a run: choose one of its parts, ")


def test_a_foreign_folder_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path, tmp_path / "none", tmp_path / "file"):
        assert refused(load_run, place) == f"{place} is not a run folder: it has no manifest.json"


@pytest.mark.parametrize("name", ["manifest.json", "sweep.json"])
@pytest.mark.parametrize("content", [b"", b'{"verb": "swe', b"[]", b"\xff\xfe\x00", b"PAR1", b"[" * 100_000])
def test_a_broken_conclusion_is_named(path: Path, name: str, content: bytes) -> None:
    (path / name).write_bytes(content)
    assert refused(load_run, path).startswith(f"{path / name} is broken: ")


def test_json_of_something_else_is_no_run_and_no_conclusion(path: Path) -> None:
    for tree, lacks in (
        ({}, ("experiment", "valid", "exit_code")),
        ({"exit_code": 0, "valid": True}, ("experiment",)),
    ):
        (path / "sweep.json").write_text(json.dumps(tree))
        said = "; ".join(f"its {name} is missing" for name in lacks)
        assert refused(load_run, path) == f"{path / 'sweep.json'} is broken: {said}"
    (path / "manifest.json").write_text(json.dumps({"name": "an app", "icons": []}))
    said = f"{path} is not a run folder: its manifest.json is of something else"
    assert refused(load_run, path) == said == refused(load_runs, path)


@pytest.mark.parametrize("name", [".", "", "..", "../x", "a/b", "/etc", 1, None])
def test_a_part_is_within_its_study(tmp_path: Path, name: Any) -> None:
    tree = {"study": "matrix", "exit_code": 0, "names": [name], "parts": []}
    (tmp_path / "study.json").write_text(json.dumps(tree))
    said = f"{tmp_path} is not a readable study: its part '{name}' is not in its folder"
    assert refused(load_runs, tmp_path) == said == refused(studies.load_verdict, tmp_path)


def test_what_the_search_took_back_did_not_fail_in_a_killed_run(path: Path) -> None:
    (path / "sweep.json").unlink()
    counted = load_run(GOLDEN).verdict.requests.by_status
    said = ", ".join(f"{count} {status}" for status, count in counted.items())
    assert "retracted" in counted and f"  requests on record: {said}\n" in screen_of_folder(path)


def test_the_command_line_takes_a_uri(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", GOLDEN.as_uri()]) == 0
    assert capsys.readouterr().out.startswith("SIMULATED, VALID")


READS = {
    "requests/part-000.parquet": (Run.requests, recount.recomputed, tables.percentiles),
    "schedule/from-000000064.parquet": (Run.requests, recount.recomputed),
    "windows.parquet": (Run.windows, recount.recomputed),
    "clients.parquet": (Run.clients,),
    "timeseries.parquet": (Run.timeseries,),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("left", [0, 100, 5000])
def test_a_parquet_file_that_was_cut_is_said(path: Path, name: str, left: int) -> None:
    with (path / name).open("r+b") as file:
        file.truncate(left)
    run = load_run(path)
    for act in READS[name]:
        assert refused(act, run).startswith(f"{path} holds a file that cannot be read: ")


def test_a_parquet_file_of_something_else_is_said(path: Path) -> None:
    """Its columns would all be null, which says that nothing happened."""
    pq.write_table(pa.table({"seq": [1], "latency": [0.3]}), path / "requests" / "part-001.parquet")
    asked: dict[str, Any]
    for asked in ({}, {"phase": "window"}, {"columns": ["window_index"]}):
        said = refused(load_run(path).requests, **asked)
        assert "part-001.parquet is no table of requests: it lacks window_index, phase, status" in said
    pq.write_table(pa.table({"rate_qps": [1.0]}), path / "windows.parquet")
    for act in (Run.windows, recount.recomputed):
        assert "windows.parquet is no table of windows: it lacks index, kind" in refused(act, load_run(path))


def test_figures_that_no_run_writes_are_refused_in_one_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = path / "requests" / "part-000.parquet"
    rows = pq.read_table(unsealed(path) / "requests" / file.name)
    place = rows.schema.get_field_index("first_token_offset_ns")
    pq.write_table(rows.set_column(place, rows.schema.names[place], [[2**63 - 1] * len(rows)]), file)
    for words in (["show", str(path), "--recompute"], ["export", str(path), "--format", "csv"]):
        assert main(words) == 2
        output = capsys.readouterr()
        assert output.err.startswith("error: ") and output.err.count("\n") == 1


def test_rows_that_are_gone_of_a_run_that_ended_are_no_lost_requests(path: Path) -> None:
    (path / "requests" / "part-000.parquet").unlink()
    said = f"{path}/requests holds no row: the run ended with 1206"
    for act in (Run.requests, recount.recomputed, tables.percentiles):
        assert refused(act, load_run(path)) == said
    shutil.rmtree(path / "schedule")
    assert refused(load_run(path).requests, columns=["seq"]) == said


def test_without_its_rows_a_killed_run_has_what_was_planned_or_nothing(path: Path) -> None:
    (path / "requests" / "part-000.parquet").unlink()
    (path / "sweep.json").unlink()
    run = load_run(path)
    assert set(run.requests()["status"].to_pylist()) == {"lost"} and run.requests().num_rows == 1206
    shutil.rmtree(path / "schedule")
    assert run.requests().num_rows == run.requests(columns=["seq"], phase="window").num_rows == 0
    assert tables.percentiles(run).num_rows == 0
    assert not recount.recomputed(run)[1]


def test_a_run_without_a_window(path: Path) -> None:
    (path / "windows.parquet").unlink()
    run = load_run(path)
    assert run.windows().num_rows == 0 and "rate_qps" in run.windows().column_names
    assert "has no windows.parquet" in refused(recount.recomputed, run)


def test_what_was_asked_is_missing_or_broken(path: Path) -> None:
    run = load_run(path)
    (path / "config.yaml").write_text("cluster: {name: [")
    assert "config.yaml" in refused(lambda: run.config)
    (path / "config.yaml").unlink()
    assert "config.yaml" in refused(lambda: run.config)
    (path / "events.jsonl").unlink()
    assert "events.jsonl" in refused(run.events)


@pytest.mark.parametrize(
    ("column", "hint"),
    [("ttft_ms", ""), ("outputtokens", "; did you mean 'output_tokens'"), ("due", "; did you mean 'due_ns'")],
)
def test_a_column_that_there_is_not(column: str, hint: str) -> None:
    said = refused(load_run(GOLDEN).requests, columns=["seq", column])
    assert said.startswith(f"requests have no column '{column}'{hint}") and "latencies=True" in said
