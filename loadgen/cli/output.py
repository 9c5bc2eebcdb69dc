"""How a command answers: the plan of a dry run, its result, the file of `--out`, the report."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from analysis.recommendation import ranking
from analysis.recommendation.ranking import RecommendationVerdict
from analysis.results import summary
from analysis.results.json_border import finite, to_tree
from analysis.results.locations import REPORT
from analysis.results.predictions import GridVerdict
from analysis.results.studies import PartVerdict
from analysis.results.verdicts import Verdict
from analysis.rows import parquet
from analysis.views import answers
from analysis.views import recommend as recommend_view
from conf import Experiment, load
from conf.compose import UNKNOWN, dump
from conf.io import durable, terminal
from conf.io.one_line import one_line, reason
from conf.keys import differences, flat
from conf.specs.workload import Conversations
from loadgen.cli import engine_model, machine
from loadgen.cli.words import kernel_lines
from loadgen.drive.prepared_load import LONGEST_S, STEADY_E2E, WARMUP_QPS
from loadgen.run.progress import json_line
from loadgen.search.pacing import longer_at, longest_search
from loadgen.traffic.prefix_sharing import means_of
from loadgen.traffic.schedule import cut_tokens

TABLES = (".parquet", ".csv")
SUFFIXES = (*TABLES, ".json")
NAMING = ("name", "kind", "served_name", "urls")
"""Keys that stand for a whole group that was chosen; `--all` shows the others."""
MOST_LETTERS = 80
"""Most letters of a value (our choice)."""


def plan(arguments: argparse.Namespace, planned: "PlannedRun | None", lines: Sequence[str] = ()) -> int:
    """Print the plan of a dry run, after `lines` about all of its runs; without one they are the plan."""
    if planned is None:
        tree: dict[str, Any] = {"notes": [line.removeprefix("# ") for line in lines]}
        text = "\n".join(lines)
    else:
        tree = plan_tree(planned)
        tree["notes"] = [*lines, *tree["notes"]]
        text = "\n".join([*(f"# {line}" for line in lines), plan_text(planned, arguments.all)])
    if arguments.json:
        json_line(None, "plan", **tree)
    else:
        terminal.tell(text)
    return summary.EXIT_OK


def noting(arguments: argparse.Namespace) -> Callable[[str], None]:
    """What prints a note on stderr; nothing with `--quiet`."""
    return (lambda _: None) if arguments.quiet else terminal.note


def printed(verdict: Verdict | GridVerdict | RecommendationVerdict, as_json: bool) -> int:
    """Print a result, a grid always as JSON, and return its exit code."""
    if as_json or isinstance(verdict, GridVerdict):
        json_line(None, "result", **to_tree(verdict))
    elif isinstance(verdict, RecommendationVerdict):
        terminal.tell(recommend_view.text(verdict))
    else:
        terminal.tell(str(answers.brief(verdict)))
    assert verdict.exit_code is not None
    return verdict.exit_code


def reported(verdict: PartVerdict, as_json: bool) -> int:
    """Print a measured result and return its exit code; then write its report, for which nobody waits.

    A study that began as a recommendation is printed as what that says by now.
    """
    folder = Path(verdict.folder)
    is_recommended = verdict.folder and (folder / ranking.FILE).exists()
    code = printed(ranking.read(folder) if is_recommended else verdict, as_json)
    write_report(verdict)
    return code


def with_report(verdict: PartVerdict) -> PartVerdict:
    """The verdict with the path of the report that `write_report` writes, if there is something to report."""
    if not verdict.folder or (verdict.requests is not None and not verdict.requests.planned):
        return verdict  # nothing was planned, as after a failed start: the answer says why
    return replace(verdict, report=str(Path(verdict.folder) / REPORT))


def write_report(verdict: PartVerdict) -> None:
    """Write the report that `with_report` names; a line on stderr if that fails, and no other result."""
    if not verdict.report:
        return
    # Pictures and templates, for which no answer waits.
    from analysis import report

    folder = Path(verdict.folder)
    try:
        report.write(folder)
        return
    except KeyboardInterrupt:
        why = "interrupted"
    except Exception as error:  # noqa: BLE001  what was measured must not be lost with its picture
        why = f"{type(error).__name__}: {reason(error)}"
    terminal.note(f"no report was written ({why}); python -m analysis report {folder} tries again")


def write(out: Path, table: pa.Table, result: Mapping[str, Any]) -> None:
    """Write the file of `--out`: `table` as Parquet or CSV, or the `result` as JSON, whole or not at all.

    In CSV what is unknown is empty and what is infinite `inf`; in JSON null and "inf".
    """
    if out.suffix == ".parquet":
        parquet.write(table, out)
        return
    with durable.replacing(out) as file:
        if out.suffix == ".json":
            file.write(json.dumps(finite({"event": "result", **result}), indent=1, default=str).encode())
            return
        for index, field in enumerate(table.schema):
            if pa.types.is_floating(field.type):  # NaN would be a word
                column = table.column(index)
                known = pc.if_else(pc.is_nan(column), None, column)
                table = table.set_column(index, field, known)
        pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(quoting_style="needed"))


# The plan of a run.


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What a command would do.

    `load_s` is the time under load: 0 on a virtual clock, None if the service decides (a closed loop). So
    many `services` are deployed one after the other, for so many `runs`. `kernels` are lines about kernels of
    unknown speed. The run chooses the speed of its `clock`, at most this one; None is that of the experiment.
    """

    experiment: Experiment
    load_s: float | None
    guess_qps: float | None = None
    services: int = 1
    runs: int = 1
    kernels: Sequence[str] = ()
    clock: float | None = None

    @property
    def time_scale(self) -> float:
        """Seconds of the engine per real second."""
        return self.clock or self.experiment.time_scale

    @property
    def longer(self) -> float:
        """Factor on the time under load at rates so low that a search counts requests."""
        searched = not (self.experiment.rate_qps or self.experiment.profile_qps)
        return longer_at(self.guess_qps) if self.guess_qps and searched else 1.0

    @property
    def expected_s(self) -> float | None:
        """Seconds of load and warm-up if none is late, on the engine's clock; None in a closed loop."""
        if not self.load_s:
            return self.load_s
        warmup_s = self.experiment.fleet.warmup_requests / WARMUP_QPS
        return self.load_s * self.longer + self.runs * warmup_s

    @property
    def longest_s(self) -> float | None:
        """Seconds at most with warm-up and drain, on the engine's clock; None in a closed loop."""
        if not self.expected_s:
            return self.expected_s
        after_s = self.experiment.search.settle_s + self.experiment.fleet.drain_s
        return self.expected_s + self.runs * after_s

    @property
    def requests(self) -> float | None:
        """Requests in all where the rate is known or guessed and does not vary."""
        experiment = self.experiment
        rate_qps = experiment.rate_qps or self.guess_qps
        if not rate_qps or experiment.profile_qps or experiment.workload.arrivals.kind == "trace":
            return None
        return rate_qps * experiment.cluster.nodes * (self.load_s or 0.0) * self.longer


def planned_run(
    experiment: Experiment,
    load_s: float | None,
    services: int = 0,
    runs: int = 0,
    clock: float | None = None,
) -> PlannedRun:
    """The plan of a command: a service for each sweep, and a run on each, unless others are given."""
    guess_qps = None if experiment.hardware.name == UNKNOWN else engine_model.guess_qps(experiment)
    services = services or experiment.search.parts
    kernels = kernel_lines(experiment)
    return PlannedRun(experiment, load_s, guess_qps, services, runs or services, kernels, clock)


def plan_tree(planned: PlannedRun) -> dict[str, Any]:
    """The plan for programs: keys whose value is not the default, all keys, times in seconds."""
    longest_s, changed = planned.longest_s, differences(load([]), planned.experiment)
    return {
        "changed": {key: {"default": before, "value": now} for key, (before, now) in changed.items()},
        "config": flat(asdict(planned.experiment)),
        "service": _service(planned.experiment),
        "load_s": None if planned.load_s is None else planned.load_s * planned.longer,
        "longest_s": longest_s,
        "time_scale": planned.time_scale,
        "longest_real_s": None if longest_s is None else longest_s / planned.time_scale,
        "requests": planned.requests,
        "notes": list(planned.kernels),
    }


def plan_text(planned: PlannedRun, whole: bool = False) -> str:
    """The plan for people, after what differs from the defaults or the `whole` configuration."""
    experiment = planned.experiment
    chats = experiment.workload.conversations
    lines = [
        *([dump(experiment).rstrip()] if whole else changed_lines(experiment)),
        *(prompt_lines(chats) if chats else []),
        *(f"# {line}" for line in planned.kernels),
        f"# {_service(experiment)}",
    ]
    if planned.load_s == 0:
        return "\n".join([*lines, "# no load: a virtual clock"])
    warm = experiment.fleet.warmup_requests
    actors, cores = experiment.fleet.actors, machine.cores()
    crowded = experiment.cluster.session != "address" and actors > cores
    shared = f", sharing the {cores} cores of this machine" if crowded else ""
    lines += [f"# {actors} load actor(s){shared}, {warm} warm-up requests", f"# {duration(planned)}"]
    return "\n".join([*lines, *(f"# {line}" for line in _load(planned))])


def duration(planned: PlannedRun) -> str:
    """The time that a command takes, in one line before it begins."""
    if planned.longest_s is None or planned.expected_s is None:
        count, held = planned.experiment.closed_requests, planned.experiment.concurrency
        return f"{count} requests in a closed loop of {held}: as long as that takes"
    clock = "" if planned.time_scale == 1 else f" (simulated clock x{planned.time_scale:g})"
    expected, longest = (minutes(s / planned.time_scale) for s in (planned.expected_s, planned.longest_s))
    return f"about {expected} of load after the start, at most {longest} if answers are late{clock}"


def minutes(seconds: float) -> str:
    """A time for people.

    >>> minutes(34.2), minutes(95), minutes(511.0), minutes(7400)
    ('34 s', '1 min 35 s', '8 min 31 s', '2 h 3 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"
    )


def changed_lines(experiment: Experiment) -> list[str]:
    """A line for each key with another value than the default, or for a whole group that was chosen."""
    changed = differences(load([]), experiment)
    chosen = {key.partition(".")[0] for key in changed if key.endswith((".name", "engine.kind"))}
    shown = {
        key: values
        for key, values in changed.items()
        if key.partition(".")[0] not in chosen or key.rpartition(".")[2] in NAMING
    }
    values = {
        key: [one_line(json.dumps(value), MOST_LETTERS) for value in values] for key, values in shown.items()
    }
    lines = [f"{key}: {now}  # default {before}" for key, (before, now) in values.items()]
    return lines or ["# every key has its default"]


def _service(experiment: Experiment) -> str:
    nodes, layout = experiment.cluster.nodes, experiment.layout
    if experiment.engine.kind == "external":
        return f"{len(experiment.target.urls)} endpoint(s), {nodes} node(s) behind them"
    shape = layout.shape if nodes == 1 else f"{layout.shape} on each"
    return f"{experiment.replicas} replica(s) on {nodes} node(s): {shape}"


def _load(planned: PlannedRun) -> Iterator[str]:
    """Lines about what makes a load longer than it was asked to be, and about its requests."""
    experiment, guess_qps, parts = planned.experiment, planned.guess_qps, planned.experiment.search.parts
    if planned.load_s is None:
        return
    if parts > 1:
        yield f"{parts} sweeps, each of a service deployed anew, with its own seed"
    elif planned.services > 1:
        yield f"{planned.services} deployments"
    tokens, search = experiment.workload.output_tokens.mean, longest_search(experiment)
    may = f"answers of {tokens:g} tokens may last {experiment.answer_s:.0f} s within the bounds"
    if experiment.rate_qps or experiment.profile_qps:
        yield f"{may}: up to {STEADY_E2E * experiment.answer_s:.0f} s of load first fill the service"
    elif experiment.workload.arrivals.kind != "trace" and search.window_s != experiment.search.window_s:
        yield f"{may}: windows of {search.window_s:.0f} s, and a budget of {search.budget_s:.0f} s for them"
    if planned.longer > 1:
        yield f"below 1 QPS per node a search counts requests: {planned.longer:.1f} times its budget"
    if planned.requests is not None:
        without = " without hits of its sessions" if experiment.workload.has_sessions else ""
        if_so = "" if experiment.rate_qps else f", if a node serves about {guess_qps:.1f} QPS{without}"
        yield f"about {planned.requests:.0f} requests{if_so}"
    if experiment.workload.wants_hits:
        yield f"cache warm-up comes on top: a ramp, then at most about {LONGEST_S:.0f} s at a window's rate"


def prompt_lines(spec: Conversations) -> list[str]:
    """The parts of a prompt in the middle of a session, each of mean length, and the reusable share."""
    turns, message = round(spec.turns) - 1, spec.message_tokens.mean
    parts = {
        "system": spec.system_tokens,
        "character": spec.character_tokens.mean,
        "persona": spec.persona_tokens.mean,
        "history": turns * (message + spec.answer_tokens.mean),
        "message": message,
    }
    history = parts["history"]
    room = spec.max_prompt_tokens - sum(parts.values()) + history
    left_out, naive = (min(history, int(cut_tokens(history, room, step))) for step in (spec.step_tokens, 1))
    kept = parts | {"history": history - left_out}
    lines = [f"#   {name:<10} {kept[name]:>6} tokens" for name in parts if name != "history" or turns]
    if turns:
        lines[3] += f" of {history}, in {2 * turns} messages"
    means = means_of(spec)
    cut = f"in steps of {spec.step_tokens}" if spec.truncation == "cache_aware" else "as little as fits"
    return [
        f"# an example prompt: turn {turns} of a session, every part and message of mean length",
        *lines,
        f"#   {'prompt':<10} {sum(kept.values()):>6} tokens",
        f"#   history is cut {cut}; naive truncation would leave out {naive} and move every turn",
        f"# a request in the mean: {means.input_tokens:.0f} tokens in, {means.output_tokens:.0f} out",
        f"# of its prompt tokens {means.reusable:.1%} begin an earlier one: no cache can serve more",
    ]
