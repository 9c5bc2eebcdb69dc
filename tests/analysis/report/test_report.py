"""analysis.report as HTML: what it says of runs that end well, badly or not at all, and what never."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import figures, load_run, report
from analysis.capacity.checks import MEANINGS, judge_run, judge_window
from analysis.capacity.rules import Check
from analysis.capacity.window_counts import NS, Window
from analysis.figures import NoData, RunData
from analysis.figures.exhibit import REPORTED
from analysis.report import blocks, pages, sections
from analysis.report.blocks import FigureBlock
from analysis.results import studies
from analysis.results.figures import ProbeFigures, Quantile
from analysis.results.json_border import to_tree
from analysis.results.runs import RunError
from analysis.results.verdicts import StudyVerdict
from analysis.rows import parquet, records
from analysis.views import answers as views
from analysis.views import rates as rates_view
from analysis.views.shown import Table
from conf.specs.experiment import Slo
from loadgen.cli import output
from loadgen.run.run_folder import checksums
from tests.support.runs.golden import GOLDEN, sweep_json, unsealed
from tests.support.runs.run_folders import studied
from tests.support.runs.run_in_memory import RunInMemory, failed, request, window

VOID = {"br", "col", "hr", "img", "input", "link", "meta", "path", "use", "rect", "circle", "line"}
CLAIMED = 77.77
"""A capacity that stands nowhere else in the golden run."""
EVIL = '<script>alert(1)</script> & "quoted"'


class Page(HTMLParser):
    """What a reader sees, and what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def built(path: Path, out: Path) -> Page:
    report.command([path], out)
    return Page(out.read_text())


@pytest.fixture(scope="module")
def golden(golden_report: Path) -> tuple[str, Page]:
    """The page of the golden run."""
    text = golden_report.read_text()
    return text, Page(text)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without figures, which take most of the time."""
    monkeypatch.setattr(figures, "EXHIBITS", ())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return unsealed(Path(shutil.copytree(GOLDEN, tmp_path / "run")))


def changed(path: Path, change: Callable[[dict[str, Any]], Any], name: str = "sweep.json") -> None:
    tree = json.loads((path / name).read_text())
    change(tree)
    (path / name).write_text(json.dumps(tree))


def test_the_verdict_stands_first_with_interval_and_certified_rate(golden: tuple[str, Page]) -> None:
    tree = sweep_json(GOLDEN)
    q = tree["capacity"]["qps_per_node"]
    text = golden[1].text
    start = text.index("VALID")
    above = text[start : text.index("Contents")]
    for figure in (q["value"], q["low"], q["high"]):
        assert f"{figure:.2f}" in above
    assert "certified 2.59" in above
    assert "a simulated engine" in above and "p90 TPOT" in above
    # What is unknown or infinite is said in words.
    assert not re.findall(r"\b(?:nan|NaN|None|inf|Infinity|undefined)\b", text)
    for check in tree["checks"]:
        assert check["name"] in text and MEANINGS[check["name"]] in html.unescape(text)
    assert "Percentiles of every window" in text and "ITL, gaps pooled" in text


def test_it_is_one_file_without_network_script_or_duplicate_ids(golden: tuple[str, Page]) -> None:
    text, page = golden
    assert len(text.encode()) < 1_000_000
    assert not page.open
    assert not page.all("script") and not page.all("img") and not page.all("iframe")
    policy = [meta for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policy[0]["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("href", "src", "xlink:href"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:,")), target
    assert "@import" not in text and "url(http" not in text
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert str(link["href"]).removeprefix("#") in ids


def test_who_cannot_see_it_gets_it_too(golden: tuple[str, Page]) -> None:
    _, page = golden
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1 and len(page.all("main")) == 1 and len(page.all("nav")) == 1
    drawings = page.all("svg")
    assert len(drawings) >= 6 and blocks.BROKEN not in page.text
    for svg in drawings:
        assert svg["role"] == "img" and len(svg["aria-label"] or "") > 40
    figures_shown = len(page.all("figure"))
    assert len(page.all("figcaption")) == figures_shown == len(drawings)
    assert len(page.all("caption")) == len(page.all("table"))
    assert len(page.all("details")) >= figures_shown
    assert page.text.count("From ") >= figures_shown


def test_every_section_of_one_run_is_there_in_order(golden: tuple[str, Page]) -> None:
    # Of a run without further bounds the two p90s are drawn already.
    shown = [exhibit.section for exhibit in ALL if exhibit.section != "bounds"]
    # One replica has no balance, and nothing failed: neither has a section of its own.
    kept = [name for name in shown if name != "balance"]
    order = ["verdict", kept[0], "trust", *kept[1:], "absent", "provenance", "definitions"]
    ids = [attributes.get("id") for attributes in golden[1].all("section")]
    assert ids == order


@pytest.mark.slow
def test_the_same_run_is_the_same_bytes_in_any_process(golden: tuple[str, Page], tmp_path: Path) -> None:
    story = (
        "import sys; from pathlib import Path; from analysis import report; "
        "report.command([Path(sys.argv[1])], Path(sys.argv[2]))"
    )
    out = tmp_path / "again.html"
    words = [sys.executable, "-c", story, str(GOLDEN), str(out)]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"})
    assert out.read_text() == golden[0]


def test_a_messages_markup_arrives_as_text(copy: Path, tmp_path: Path, undrawn: None) -> None:
    rows = load_run(copy).requests()
    count = rows.num_rows
    status = pa.array(["http_error" if i % 50 == 0 else "ok" for i in range(count)])
    message = pa.array([EVIL if i % 50 == 0 else None for i in range(count)])
    place = {name: rows.schema.get_field_index(name) for name in ("status", "error")}
    rows = rows.set_column(place["status"], "status", status.cast(rows.schema.field("status").type))
    rows = rows.set_column(place["error"], "error", message)
    records.write(rows, copy / "requests" / "part-000.parquet")
    changed(copy, lambda tree: tree["experiment"].update(model=EVIL))
    page = built(copy, tmp_path / "out.html")
    assert not page.all("script")
    assert page.text.count("<script>alert(1)</script>") >= 2
    assert "http_error" in page.text


ALL = figures.EXHIBITS


@pytest.mark.parametrize(
    ("code", "reason", "word"),
    [
        (4, "client_limited: Give the load generator more actors.", "VOID"),
        (130, "every request received so far is saved", "INTERRUPTED"),
        (1, "internal error, see traceback.txt", "FAILED"),
    ],
)
def test_what_is_not_claimed_is_not_shown(
    copy: Path, tmp_path: Path, undrawn: None, code: int, reason: str, word: str
) -> None:
    def ended(tree: dict[str, Any]) -> None:
        tree |= {"valid": False, "passed": False, "exit_code": code, "reason": reason}
        tree["capacity"]["qps_per_node"] = dict.fromkeys(("value", "low", "high", "certified"), CLAIMED)
        tree["capacity"]["qps_per_replica"] = tree["capacity"]["qps_per_node"]

    changed(copy, ended)
    page = built(copy, tmp_path / "out.html")
    assert page.text.index(word) < page.text.index("Contents")
    assert "No capacity is claimed" in page.text
    assert str(CLAIMED) not in page.text
    assert reason.partition(": ")[2] in page.text


def test_a_killed_run_says_so(copy: Path, tmp_path: Path, undrawn: None) -> None:
    (copy / "sweep.json").unlink()
    (copy / "windows.parquet").unlink()
    page = built(copy, tmp_path / "out.html")
    assert "UNFINISHED" in page.text and "requests on record 1203 ok, 3 retracted" in page.text
    assert f"python -m loadgen resume {copy}" in page.text
    assert "QPS per node, 95 %" not in page.text


def test_a_run_without_one_window_or_sample_still_has_a_report(copy: Path, tmp_path: Path) -> None:
    for name in ("windows.parquet", "clients.parquet", "timeseries.parquet", "requests", "schedule"):
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def nothing(tree: dict[str, Any]) -> None:
        del tree["capacity"], tree["basis"], tree["prediction"], tree["checks"]
        tree |= {"windows": [], "valid": False, "exit_code": 5, "reason": "the deployment failed"}
        tree["requests"] = {"planned": 0, "rows": 0, "by_status": {}}

    changed(copy, nothing)
    page = built(copy, tmp_path / "out.html")
    assert "NO RESULT" in page.text and "the deployment failed" in page.text
    assert not page.all("svg")
    assert page.text.count(" Not shown: ") >= len(figures.EXHIBITS)


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        ((True, True), "within the bounds"),
        ((True, None), "p90 TTFT within its bound, p90 TPOT unknown or not applicable"),
        ((None, False), "p90 TPOT over the bound"),
    ],
)
def test_a_p90_that_nobody_knows_is_not_within_its_bound(
    passed: tuple[bool | None, bool | None], message: str
) -> None:
    ttft, tpot = (Quantile(ms=None, bound_ms=1.0, passed=one) for one in passed)
    probe = ProbeFigures(rate_qps_per_node=1.0, limits={"ttft": ttft, "tpot": tpot})
    assert rates_view.probe_outcome(probe) == message


def test_several_runs_stand_side_by_side(copy: Path, tmp_path: Path, undrawn: None) -> None:
    def other(tree: dict[str, Any]) -> None:
        tree["capacity"]["qps_per_node"]["value"] = CLAIMED
        tree["experiment"]["layout"] = "another"

    changed(copy, other)
    out = tmp_path / "both.html"
    with pytest.raises(RunError, match="--out"):
        report.command([GOLDEN, copy], None)
    assert report.command([GOLDEN, copy], out) == f"report {out}"
    page = Page(out.read_text())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert str(CLAIMED) in page.text and len(page.all("figure")) == 1 and blocks.BROKEN not in page.text
    assert "run differs from golden_run in layout" in page.text


def test_a_page_of_many_runs_draws_the_first_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MOST_DRAWN", 1)
    drawn = [
        sum(isinstance(block, FigureBlock) for block in section.blocks)
        for section in pages.of_runs([load_run(GOLDEN)] * 2).sections
        if section.id.startswith("run-")
    ]
    assert drawn == [len(pages.MAIN), 0]


def test_a_server_that_tells_too_much_does_not_make_a_large_page(
    copy: Path, tmp_path: Path, undrawn: None
) -> None:
    def told(manifest: dict[str, Any]) -> None:
        manifest["server"] = {"models": [EVIL] * 2_000}
        manifest["files"] = {f"file-{number}": "0" * 64 for number in range(1_000)}

    changed(copy, told, "manifest.json")
    changed(copy, lambda tree: tree.update(windows=tree["windows"] * 50))
    page = built(copy, tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size < 400_000 and not page.all("script")
    assert "The first 200 of 1,000 rows." in page.text and "(cut here; the run's files" in page.text


def test_every_check_is_known_to_the_page() -> None:
    window = Window(0, "window", 1.0, 1, 0, 0, 60 * NS, 60 * NS, concurrency=4)
    unnamed = {"window_index": 0, "due_ns": 0, "status": "ok", "replica_id": parquet.OTHER_WORD}
    failed = unnamed | {"status": "truncated", "error_kind": "no_usage"}
    rows, slo = records.table([unnamed, failed]), Slo("any", 1000, 100, {"queue_p90": 500.0})
    closed, opened = (judge_window(rows, one, slo) for one in (window, replace(window, concurrency=0)))
    verdicts = [opened, closed, judge_run([closed], 2)]
    names = {check.name for verdict in verdicts for check in verdict.checks}
    assert names | {"service_losses", "lost_nodes", "lost_load_hosts"} == MEANINGS.keys()


@pytest.mark.parametrize(
    ("passed", "why", "state"),
    [(True, "", "ok"), (False, "late", "FAILED"), (False, "", "note"), (None, "", "unknown")],
)
def test_a_check_without_a_reason_is_a_note(passed: bool | None, why: str, state: str) -> None:
    assert views.check_state(Check("x", passed, 2.0, 1.0, "ms", why, least=False)) == state


def test_a_report_that_fails_changes_no_result(
    copy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = load_run(GOLDEN).verdict
    verdict = replace(known, folder=str(copy))
    for error in (OSError("disk full"), ValueError("a bug"), KeyboardInterrupt()):

        def fail(path: Path, error: BaseException = error) -> Path:
            raise error

        monkeypatch.setattr(report, "write", fail)
        output.write_report(output.with_report(verdict))
        told = capsys.readouterr().err
        assert told.count("\n") == 1 and f"python -m analysis report {copy}" in told
    nowhere = replace(verdict, folder="")
    assert output.with_report(nowhere) == nowhere


def test_a_report_is_written_anew_and_no_file_of_the_run(copy: Path, undrawn: None) -> None:
    before = checksums(copy)
    assert report.command([copy], None) == f"report {copy / 'report.html'}"
    first = (copy / "report.html").read_bytes()
    known = load_run(copy).verdict
    verdict = output.with_report(replace(known, folder=str(copy)))
    output.write_report(verdict)
    assert verdict.report == str(copy / "report.html")
    assert (copy / "report.html").read_bytes() == first
    assert checksums(copy) == before and not list(copy.glob("*.tmp"))


def test_a_studys_page_has_its_own_answer_and_leads_to_its_parts(tmp_path: Path, undrawn: None) -> None:
    names = [f"deployment-{number}" for number in range(1, 4)]
    golden_verdict = load_run(GOLDEN).verdict
    empty = StudyVerdict(
        study="deployments", experiment=golden_verdict.experiment, names=(), parts=(), exit_code=0
    )
    found = to_tree(studies.pooled_deployments(empty, dict.fromkeys(names, golden_verdict), 1.0))
    pooled = {key: found[key] for key in ("capacity", "between", "effects_pct", "evidence", "remedy")}
    folder = studied(tmp_path / "study", "deployments", *names, **pooled)
    assert report.command([folder], None) == f"report {folder / 'report.html'}"
    page = Page((folder / "report.html").read_text())
    links = [str(link["href"]) for link in page.all("a") if not str(link["href"]).startswith("#")]
    assert links == [f"{name}/report.html" for name in names]
    for link in links:
        assert "3.32 QPS per node" in Page((folder / link).read_text()).text
    q = pooled["capacity"]["qps_per_node"]
    above = page.text[: page.text.index("Contents")]
    assert f"[{q['low']:.2f}, {q['high']:.2f}]" in above and "pooled over 3 deployments sd" in page.text
    assert len(page.all("figure")) == 1
    assert f"python -m loadgen sweep --config {folder}/config.yaml run=study-again" in page.text


def test_a_comparison_says_its_ratio_and_what_differs(tmp_path: Path, undrawn: None) -> None:
    value = {"value": 0.9, "low": 0.85, "high": 0.97}
    ratio = {"estimate": value, "limits": {"tpot": {"estimate": value, "weight": 1.0}}}
    more = {
        "ratio": ratio | {"pairs": 5, "correlation": None, "unlike": False},
        "differs": {"layout.name": ["one", "two"]},
    }
    page = built(studied(tmp_path / "study", "compare", "a", "b", **more), tmp_path / "out.html")
    above = page.text[: page.text.index("Contents")]
    assert "B / A = 0.900 [0.850, 0.970] (95 %): B is worse" in above
    assert "layout.name one two" in page.text and "service of a" in page.text


def test_a_study_that_still_runs_claims_nothing(tmp_path: Path, undrawn: None) -> None:
    more = {"state": "running", "valid": False, "passed": False, "exit_code": None, "reason": "not ended"}
    folder = studied(tmp_path / "study", "repeats", "repeat-1", "repeat-2", **more)
    shutil.rmtree(folder / "repeat-2")
    changed(folder, lambda tree: tree["parts"].pop(), "study.json")
    text = built(folder, tmp_path / "out.html").text
    assert text.index("UNFINISHED") < text.index("Contents") and "no result yet" in text
    assert f"python -m loadgen resume {folder}" in text


def test_a_figure_that_breaks_takes_nothing_else_with_it(
    copy: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    (copy / "timeseries.parquet").write_bytes((copy / "timeseries.parquet").read_bytes()[:100])
    monkeypatch.setattr(figures, "EXHIBITS", tuple(e for e in ALL if e.name in ("timeseries", "cdf")))
    page = built(copy, tmp_path / "out.html")
    assert blocks.BROKEN in page.text and "timeseries.parquet" in page.text
    assert len(page.all("figure")) == 1 and "3.32 QPS per node" in page.text


@pytest.mark.parametrize("file", ["windows.parquet", "requests/part-000.parquet"])
def test_tables_that_break_take_nothing_else_with_them(
    copy: Path, tmp_path: Path, undrawn: None, file: str
) -> None:
    (copy / file).write_bytes((copy / file).read_bytes()[:100])
    page = built(copy, tmp_path / "out.html")
    assert f"Percentiles of every window in ms. Not shown: {blocks.BROKEN} (RunError: " in page.text
    assert "3.32 QPS per node" in page.text


def test_percentiles_say_of_how_many_requests_they_are() -> None:
    rows = [*(request(0, i / 2) for i in range(20)), *(failed(0, 10 + i / 2) for i in range(3))]
    run = RunInMemory(rows, [window(0, 2.0, 0.0, 20.0, valid=False)])
    table = sections.percentiles(RunData(run, REPORTED))
    assert isinstance(table, Table) and table.heads[3:5] == ("known", "failed")
    assert table.rows[0][:6] == ("window 0, void", "2 QPS per node", "TTFT", "23", "3", "100")
    assert all(len(row) == len(table.heads) for row in table.rows)


def test_errors_are_counted_with_their_first_words() -> None:
    def many(of: int, count: int) -> RunInMemory:
        answered = [request(0, i / 2) for i in range(of)]
        return RunInMemory([*answered, *(failed(0, 9 + i / 8, error_kind=f"kind {i}") for i in range(count))])

    full = [failed(0, 17 + i, error_kind="server_error", http_status=503, error="full") for i in range(5)]
    late = [failed(0, 29 + i, "missed", error_kind="late") for i in range(2)]
    retracted = failed(0, 9.9, "missed", phase="retracted", error_kind="retracted")
    rows = sections.errors_table(
        RunData(RunInMemory([*many(53, 0).rows, *full, *late, retracted]))
    ).to_pylist()
    assert [(row["status"], row["http_status"], row["requests"]) for row in rows] == [
        ("http_error", 503, 5),
        ("missed", None, 2),
    ]
    assert rows[0]["first_message"] == "full" and rows[0]["share_pct"] == pytest.approx(100 * 5 / 60)
    assert sections.errors_table(RunData(many(0, 40))).num_rows == 30
    with pytest.raises(NoData, match="no failures among 20 requests"):
        sections.errors_table(RunData(many(20, 0)))


def test_the_page_has_every_rate_and_the_throughput(undrawn: None) -> None:
    page = pages.of_run(load_run(GOLDEN))
    (rates,) = [block for block in page.sections[0].blocks if getattr(block, "title", "") == pages.RATES]
    assert isinstance(rates, Table) and len(rates.rows) == load_run(GOLDEN).windows().num_rows
    assert page.answer and "14560 tokens/s in, 364 out" in dict(page.answer.facts)["at 2.6 QPS per node"]
