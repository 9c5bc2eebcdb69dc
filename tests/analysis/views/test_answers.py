"""analysis.views: answers, rates, and how one is shown as text, HTML and table; a sweep ends in few lines."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from analysis import load_run, planning
from analysis.__main__ import main
from analysis.capacity.window_counts import in_window
from analysis.capacity.window_table import token_rates, window
from analysis.results.experiment_facts import describe
from analysis.results.json_border import to_tree
from analysis.results.verdicts import PartRow, RunVerdict, StudyVerdict
from analysis.rows import metrics
from analysis.stats.estimate import Estimate
from analysis.views import answers, rates, study
from analysis.views.shown import MOST_LETTERS, Answer, Link, Table, table_lines
from conf import Experiment, load
from tests.support.runs import golden as golden_run
from tests.support.runs.golden import GOLDEN, sweep_json
from tests.support.runs.verdict_trees import text_of, verdict_of
from tests.support.words.words import TABLES

MOST_LINES = 15
VERDICTS = GOLDEN.parent / "verdicts"


def saved(name: str, **changes: Any) -> RunVerdict:
    path = VERDICTS / f"{name}.json"
    verdict = verdict_of(json.loads(path.read_text()) | changes, path)
    assert isinstance(verdict, RunVerdict)
    return verdict


def golden(**changes: Any) -> RunVerdict:
    return golden_run.golden(folder="runs/x", **changes)


def facts(verdict: RunVerdict) -> dict[str, str]:
    return dict(answers.brief(verdict).facts)


def rows(table: Table) -> list[dict[str, str]]:
    names = [f"{head} {place}" if head.startswith("p") else head for place, head in enumerate(table.heads)]
    return [dict(zip(names, map(str, row), strict=True)) for row in table.rows]


def test_a_planner_reads_the_rate_what_limits_it_and_the_next_command_first() -> None:
    answer = answers.brief(golden(report="runs/x/report.html"))
    assert answer.headline.startswith("2.59 QPS per node to plan with (certified); capacity 3.32, joint 95 %")
    names = [name for name, _ in answer.facts]
    assert names[:3] == ["limited by", "at 2.6 QPS per node", "nodes for a demand"]
    said = dict(answer.facts)
    assert said["at 2.6 QPS per node"] == "p90 TTFT 738 ms, p90 TPOT 51.7 ms; 14560 tokens/s in, 364 out"
    assert said["nodes for a demand"] == "maxqps plan runs/x demand.peak_qps=QPS"
    assert said["checks"] == "14 of 16 ok; notes: run_share, backlog_slope_t"
    assert said["report"] == (Path.cwd() / "runs/x/report.html").as_uri()
    assert 1 + len(answer.facts) + len(answer.notes) <= MOST_LINES


@pytest.mark.parametrize("path", sorted(VERDICTS.glob("*.json")), ids=lambda path: path.stem)
def test_no_run_ends_with_more_lines_than_a_screen_holds(path: Path) -> None:
    verdict = verdict_of(json.loads(path.read_text()), path)
    if isinstance(verdict, RunVerdict) and not verdict.progressive:
        answer = answers.brief(verdict)
        assert 1 + len(answer.facts) + len(answer.notes) <= MOST_LINES


def test_the_rates_stand_by_the_load_that_arrived_with_their_final_figures() -> None:
    verdict = golden()
    (table,) = answers.brief(verdict).tables
    arrived = [float(row["arrived"]) for row in rows(table)]
    assert arrived == sorted(arrived) and len(arrived) == len(verdict.windows)
    last = rows(table)[-1]
    assert (last["offered"], last["arrived"], last["verdict"]) == ("3.5", "3.9", "over p90 TPOT")
    assert {row["verdict"] for row in rows(table)} == {"within", "over p90 TPOT"}


def test_a_void_window_says_why_and_a_ramp_step_is_no_rate() -> None:
    first, second, *others = golden().windows
    changed = (
        {**first, "valid": False, "void_reason": "client_limited"},
        {**second, "kind": "ramp"},
        *others,
    )
    table = rates.table(changed, golden().experiment.slo)
    assert [row["verdict"] for row in rows(table)].count("VOID: client_limited") == 1
    assert len(table.rows) == len(changed) - 1


def test_a_distant_window_is_said_to_be_the_nearest() -> None:
    kept = tuple(line for line in golden().windows if line["work_qps_per_node"] > 3.1)
    (name,) = [name for name in facts(golden(windows=kept)) if name.startswith("at ")]
    assert name == "at 3.27 QPS per node, the load nearest to that rate"


@pytest.mark.parametrize(
    ("end", "message"), [("open_above", "at least 5.00 QPS per node"), ("open_below", "at most 7.00")]
)
def test_a_bound_alone_is_no_capacity_and_no_rate_to_plan_with(end: str, message: str) -> None:
    q = Estimate(77.77, 5.0, 7.0, 77.77)
    open_ = golden(capacity=replace(golden().capacity, qps_per_node=q, **{end: True}), exit_code=6)
    for result in (answers.brief(open_), answers.answer(open_)):
        assert result.headline.startswith(message) and "to plan with" not in result.headline
        assert result.tone == "short" and "77.77" not in str(result)


def test_an_open_part_says_so_and_that_it_is_simulated() -> None:
    at_least = Estimate(4.0, 3.0, None)
    open_ = PartRow(name="a", exit_code=6, reason="why", qps_per_node=at_least, simulated="joint")
    parts = open_, replace(open_, name="b", simulated=""), replace(open_, name="c", exit_code=0)
    names = tuple(part.name for part in parts)
    of_study = StudyVerdict(
        study="repeats", experiment=golden().experiment, names=names, parts=parts, exit_code=6
    )
    results = [row[-1] for row in study.table(of_study).rows]
    assert results == [
        "open (exit 6, SIMULATED, joint): why",
        "open (exit 6): why",
        "valid (SIMULATED, joint)",
    ]


def test_a_failed_check_stands_with_its_figures() -> None:
    first, *others = golden().checks or ()
    late = replace(first, value=3.0, passed=False, reason="lost_actors")
    said = facts(golden(checks=(late, *others), valid=False, capacity=None))["checks"]
    assert said.startswith("13 of 16 ok; FAILED: lost_actors 3, bound <= 0; notes: ")


def test_show_is_short_and_show_all_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(GOLDEN)]) == 0
    short = capsys.readouterr().out
    assert main(["show", str(GOLDEN), "--all"]) == 0
    whole = capsys.readouterr().out
    assert whole == f"{answers.of_folder(GOLDEN)}\n" and "engine_late_steps" in whole
    assert "engine_late_steps" not in short and "TTFT p50" in short
    assert "1 replica(s), layout dp1_tp8_ep8, on 1 node(s) of MI325X, routing leastconn" in whole


def test_token_rates_are_those_of_the_answers_and_unknown_is_not_0() -> None:
    run = load_run(GOLDEN)
    line = run.windows().to_pylist()[0]
    rows = in_window(run.requests(), window(line))
    answered = metrics.status_in(rows, "ok")
    output = metrics.numbers(rows, "output_tokens")[answered].sum() / window(line).seconds
    assert line["output_token_rate_per_node"] == pytest.approx(output)
    of_two = token_rates(rows, 2 * window(line).seconds)
    assert of_two["output_token_rate_per_node"] == pytest.approx(output / 2)
    assert token_rates(rows.slice(0, 0), 30.0) == dict.fromkeys(token_rates(rows, 1.0), 0.0)
    assert set(token_rates(rows, 0.0).values()) == {None}
    name = "output_tokens"
    place, field = rows.column_names.index(name), rows.schema.field(name)
    untold = rows.set_column(place, field, pa.nulls(rows.num_rows, field.type))
    assert token_rates(untold, 30.0)["output_token_rate_per_node"] is None
    assert token_rates(untold, 30.0)["prompt_token_rate_per_node"]


@pytest.mark.parametrize(("limit", "message"), TABLES["reasons to doubt an interval"])
def test_reasons_to_doubt_an_interval_stand_under_the_answer(limit: dict[str, Any], message: str) -> None:
    tree = sweep_json(GOLDEN)
    tree["capacity"]["limits"][tree["capacity"]["binding"]] |= limit
    assert (f"doubtful: {message}" in text_of(tree)) == bool(limit)
    tree["experiment"]["conversations"] = "cache-aware"
    assert "biased 2 to 3 % low: users stay for longer than a search" in text_of(tree)


SHORT = ["workload.input_tokens=200", "workload.output_tokens=50"]
EXTERNAL = load([*SHORT, "engine=external", "target.urls=[http://x:1]"])
LOAD = "workload chat_5600_140 changed: 200/50 tokens"


def measured(experiment: Experiment) -> dict[str, Any]:
    """The golden run's verdict as that of another experiment."""
    tree = sweep_json(GOLDEN)
    if experiment.engine.kind == "external":
        tree["capacity"]["qps_per_replica"] = None
    return tree | {"experiment": to_tree(describe(experiment))}


def test_external_endpoints_have_no_machine_and_no_gpus_on_the_screen_and_in_a_plan() -> None:
    text, plan = text_of(measured(EXTERNAL)), planning.plan(measured(EXTERNAL), 200)
    assert text.splitlines()[0].endswith("certified 2.59; requests of 200/50 tokens")
    assert f"  service: unknown model on unknown hardware, external engine, {LOAD}, arrivals poisson" in text
    planned = str(plan.answer())
    assert plan.gpus is None and ", GPUs unknown, for 200 QPS" in planned
    assert "unknown model on unknown hardware, unknown layout, external engine, routing unknown" in planned
    assert not any(name in text + planned for name in ("Qwen", "MI325X", "dp1"))


def test_replicas_of_several_nodes_are_counted_on_the_screen_and_in_a_plan() -> None:
    run = measured(load(["cluster=laptop_4n", "layout.replicas_per_node=4", "layout.tensor_parallel=2"]))
    assert "16 replica(s), layout 4 x TP2/EP2, on 4 node(s) of MI325X" in text_of(run)
    plan = planning.plan(run, 200)
    assert (plan.engines, plan.gpus) == (4 * plan.nodes, 8 * plan.nodes)


ROWS = (("a", "1.5", "ok"), (Link("b", "b/report.html"), "12", "failed: <b>"))
TABLE = Table("Parts", ("part", "QPS", "state"), ROWS, note="Two parts.", state=2)
ANSWER = Answer(
    "VALID", "good", "3 QPS <per> node", (("limited by", "p90 & p99"),), (TABLE,), ("to go on: x",)
)


def test_the_text_has_the_headline_first_and_the_notes_last() -> None:
    assert str(ANSWER).splitlines() == [
        "VALID  3 QPS <per> node",
        "  limited by: p90 & p99",
        "  Parts",
        "    part  QPS  state",
        "    a     1.5  ok",
        "    b      12  failed: <b>",
        "  Two parts.",
        "  to go on: x",
    ]


def test_html_escapes_the_words_of_others_and_cuts_what_is_absurdly_long() -> None:
    html = ANSWER._repr_html_()
    assert "3 QPS &lt;per&gt; node" in html and "p90 &amp; p99" in html and "failed: &lt;b&gt;" in html
    assert '<a href="b/report.html">b</a>' in html and "To go on: x" in html
    whole = Answer("VALID", "good", "x" * (MOST_LETTERS + 1))._repr_html_()
    assert "cut here" in whole and len(whole) < MOST_LETTERS + 2000


def test_markup_of_the_terminal_in_a_cell_stays_text() -> None:
    lines = table_lines(Table("", ("a", "b"), (("[bold]x[/bold]", "y"), ("\u4e2d", "z"))))
    assert [line.strip() for line in lines[1:]] == ["[bold]x[/bold]  y", f"\u4e2d{' ' * 14}z"]
