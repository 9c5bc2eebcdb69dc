"""Sections of a page: checks, errors and percentiles, power, the quality gate, definitions, provenance."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import ArrowException

from analysis.capacity.checks import MEANINGS
from analysis.capacity.rules import Check
from analysis.figures.comparison import GateIntervals, GatePositions
from analysis.figures.exhibit import FAILURE, NoData, RunData, WindowRows
from analysis.quality import answer_file, gate
from analysis.quality.answer_file import AnswerRecord
from analysis.quality.gate import GateVerdict
from analysis.report.blocks import (
    Block,
    Code,
    Definitions,
    Missing,
    Section,
    arrow_table,
    block_or_reason,
    figure,
    figure_block,
    moment,
    value,
)
from analysis.results.energy import WHOLE, PowerFigures, WindowEnergy
from analysis.results.experiment_facts import ExperimentFacts
from analysis.results.figures import CapacityFigures
from analysis.results.runs import Run
from analysis.results.studies import Study
from analysis.results.verdicts import StudyVerdict
from analysis.rows import metrics, records
from analysis.rows.metrics import METRICS
from analysis.stats.estimate import UNKNOWN, number
from analysis.stats.quantiles import quantile
from analysis.views import answers
from analysis.views import study as view
from analysis.views.shown import Fact, Table
from conf import ConfigError, load
from conf.compose import dump
from conf.io.one_line import reason
from conf.io.terminal import shown


def checks_table(known: Sequence[Check], valid: bool) -> Table:
    """The worst figure of each check, over the windows that count if there are any, and its meaning."""
    table, which = answers.checks_table(known, digits=4), "the windows that count" if valid else "all windows"
    meanings = (MEANINGS.get(check.name, UNKNOWN) for check in known)
    return replace(
        table,
        title=f"Every check with its worst figure over {which}",
        heads=(*table.heads, "what it means"),
        rows=tuple((*row, meaning) for row, meaning in zip(table.rows, meanings, strict=True)),
        folded="failed" not in table.tones,
        note="FAILED makes a window void. A note informs and decides nothing. Unknown: it does not apply, or "
        "was not reported.",
        stacks=True,
    )


SHOWN_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL, gaps pooled", "e2e": "E2E"}
SHARES = (0.5, 0.9, 0.95, 0.99)


def percentiles(data: RunData) -> Block:
    """Percentiles of every latency in each window, folded, or why there are none.

    The throughput is that of the answers due in the window, over its length.
    """
    title = "Percentiles of every window in ms"
    heads = "window", "nominal rate", "latency", "known", "failed", *(f"p{100 * share:g}" for share in SHARES)

    def table() -> Table:
        rows = (line for window in data.windows for line in _percentile_lines(window))
        return Table(title, heads, tuple(rows), folded=True)

    return block_or_reason(title, table)


def _percentile_lines(window: WindowRows) -> Iterator[tuple[str, ...]]:
    void = ", void" if window.void else ""
    head = f"{window.line['kind']} {window.line['index']}{void}", f"{number(window.rate)} QPS per node"
    for metric in METRICS:
        if metric.name in SHOWN_METRICS:
            values = metric.of(window.rows)
            values = values[~np.isnan(values)]
            counts = str(len(values)), str(np.count_nonzero(np.isinf(values)))
            ends = (figure(quantile(values, share)) if len(values) else UNKNOWN for share in SHARES)
            yield *head, SHOWN_METRICS[metric.name], *counts, *ends
    tokens = float(np.nansum(metrics.numbers(window.rows, "output_tokens")))
    throughput = f"throughput {figure(tokens / window.window.seconds)} output tokens/s"
    yield *head, throughput, *[""] * (2 + len(SHARES))


MOST_ROWS, MESSAGE_CHARACTERS = 30, 400
"""Our choice; requests/*.parquet has all of them."""


def errors(data: RunData) -> Section:
    """Failures by kind with the first message of each, most frequent first, or that there are none."""
    title = "Failed requests by kind (requests/*.parquet)"

    def table() -> Table:
        kinds = errors_table(data)
        note = f"The {MOST_ROWS} most frequent kinds at most." if kinds.num_rows == MOST_ROWS else ""
        return replace(arrow_table(title, kinds, "none"), note=note)

    return Section("errors", (block_or_reason(title, table),))


def errors_table(data: RunData) -> pa.Table:
    """Each status, kind and HTTP status of failures with its count, share in % and first message.

    The most frequent first, at most thirty rows. Raises NoData where nothing failed.
    """
    rows = data.requests.filter(pa.array(~metrics.word_in(data.requests, "phase", "retracted")))
    failed = rows.filter(pa.array(metrics.status_in(rows, *records.FAILURES)))
    if not failed.num_rows:
        raise NoData(f"no failures among {rows.num_rows:,} requests")
    plain = pa.table({name: failed[name].cast(pa.string()) for name in ("status", "error_kind", "error")})
    plain = plain.append_column("http_status", failed["http_status"])
    counts = plain.group_by(FAILURE, use_threads=False).aggregate([("status", "count"), ("error", "first")])
    shares = pc.multiply(100.0 / rows.num_rows, counts["status_count"])
    words = pc.utf8_slice_codeunits(counts["error_first"], 0, MESSAGE_CHARACTERS)
    columns = {"requests": counts["status_count"], "share_pct": shares, "first_message": words}
    counted = pa.table({**{name: counts[name] for name in FAILURE}, **columns})
    order = [("requests", "descending"), *((name, "ascending") for name in FAILURE)]
    return counted.sort_by(order).slice(0, MOST_ROWS)


POWER_TITLE = "Power and energy"
WINDOW_HEADS = (
    *("window", "QPS per node", "W per node", "idle share", "Wh per request"),
    *("kWh per 1M input tokens", "kWh per 1M output tokens", "covered by samples"),
)
OF_GPUS = "CPUs, memory, network and fans of a node are not in the watts of its GPUs."
POWER_MEANING = (
    "Watts are the mean of {of} over a window, from samples about a second apart. Energy is that of all "
    "nodes over the requests due in the window that were answered: what failed is paid by the others. The "
    "idle share is the power of the warm service before the load over that in the window."
)


def power_sections(power: PowerFigures | None) -> list[Section]:
    """The section of a run that asked its nodes for their power."""
    if power is None:
        return []
    blocks: list[Block] = [POWER_MEANING.format(of=power.of)]
    if power.unknown:
        blocks = [Missing(POWER_TITLE, f"unknown, for {power.unknown}")]
    if power.windows:
        caption = "Each window" if power.at is None else f"Each window; the verdict quotes window {power.at}"
        note = "" if power.of == WHOLE else OF_GPUS
        blocks.append(Table(caption, WINDOW_HEADS, tuple(map(_window_row, power.windows)), note=note))
    return [Section("power", tuple(blocks))]


def _window_row(one: WindowEnergy) -> tuple[str, ...]:
    energy = one.wh_per_request, one.kwh_per_1m_input_tokens, one.kwh_per_1m_output_tokens
    rates = figure(one.rate_qps_per_node), figure(one.watts_per_node), _percent(one.idle_share)
    return str(one.index), *rates, *map(figure, energy), _percent(one.coverage)


def _percent(share: float | None) -> str:
    return figure(None) if share is None else f"{100 * share:.0f} %"


GATE_PURPOSE = "Whether the answers are still those of the first part (A)."


def quality_sections(study: Study) -> list[Section]:
    """The section of a gate; none of another study."""
    verdict, path = study.verdict.quality, study.path
    if not verdict or len(study.verdict.names) < 2:
        return []
    base, name = study.verdict.names[:2]
    blocks: list[Block] = [*view.gate_tables(verdict)]
    try:
        a, b = (answer_file.read(path / side / answer_file.FILE) for side in (base, name))
        moments = gate.moments(answer_file.evidence_of(a, b), load(base=path / "config.yaml").quality)
        blocks.append(figure_block(GateIntervals, moments, f"{name}-"))
        blocks.append(figure_block(GatePositions, verdict, f"{name}-"))
        blocks.append(_worst_prompts(verdict, a, b))
    except (OSError, ArrowException, ValueError) as error:
        blocks.append(Missing("Evidence of the gate", reason(error)))
    return [Section(f"quality-{name}", tuple(blocks), f"Answers of {name} beside {base}", GATE_PURPOSE)]


def _worst_prompts(verdict: GateVerdict, a: list[AnswerRecord], b: list[AnswerRecord]) -> Table:
    ours, theirs = ({record.prompt: record for record in side if record.repeat == 0} for side in (a, b))
    rows = tuple(
        (
            str(record.prompt),
            figure(record.most_nats),
            figure(record.excess_nats),
            *_texts(ours.get(record.prompt), theirs.get(record.prompt)),
        )
        for record in verdict.worst
    )
    heads = "prompt", "most at one position, nats", "mean excess, nats", "A", "B"
    return Table("The worst prompts side by side", heads, rows, stacks=True)


def _texts(*both: AnswerRecord | None) -> list[str]:
    """Both answers as text, or as token ids where their texts do not tell them apart."""
    texts = [(record.text or "").strip() if record else "" for record in both]
    if all(texts) and len(set(texts)) > 1:
        return texts
    return [
        " ".join(map(str, record.answer.tokens)) if record and record.answer else UNKNOWN for record in both
    ]


def definitions(experiment: ExperimentFacts, capacity: CapacityFigures | None) -> Section:
    """Definitions of everything that is claimed."""
    origin = capacity.interval if capacity else ""
    rows = tuple((metric.name, "ms", metric.meaning, metric.formula) for metric in METRICS)
    heads = "metric", "unit", "in words", "formula (columns of requests/*.parquet)"
    block = Definitions(
        bounds=experiment.slo.text,
        is_joint=bool(capacity and capacity.constants),
        several="" if "posterior" in origin else origin,
        metrics=Table("Metrics: one value per request", heads, rows, stacks=True),
    )
    return Section("definitions", (block,))


CREDENTIALS = re.compile(r"(?<=://)[^/@\s\"']+@")
ENTRIES = "loadgen/__main__.py", "loadgen"
"""Endings of the first word of argv in a call of `python -m loadgen`."""


def provenance(run: Run) -> Section:
    """Everything needed to trust a run or to repeat it."""
    blocks = origin(run)
    if hosts := run.manifest.get("hosts"):
        blocks.append(hosts_table(hosts))
    if engine := _engine(run.manifest):
        blocks.append(Code("The engine as it reports itself", engine, folded=True))
    try:
        config = shown(CREDENTIALS.sub("", dump(run.config)))
    except ConfigError as error:
        config = f"cannot be read: {error}"
    blocks.append(Code("The resolved configuration (config.yaml)", config, folded=True))
    if files := run.manifest.get("files"):
        rows = tuple(sorted(files.items()))
        blocks.append(Table("Files of the run folder (manifest.json)", ("file", "sha256"), rows, folded=True))
    return Section("provenance", tuple(blocks))


def study_provenance(study: StudyVerdict, parts: Sequence[Run]) -> list[Section]:
    """The command that repeats a study; empty if no part has begun."""
    if not parts:
        return []
    lines = _typed(parts[0].manifest)
    if study.study in ("deployments", "repeats"):
        lines += _again(f"{study.folder}/config.yaml", "sweep", study.run_id)
    purpose = "Each part has its own versions, seeds and files; they stand with it above and in its report."
    return [Section("provenance", (_reproduced(lines),), "Provenance", purpose)]


def origin(run: Run) -> list[Block]:
    """Facts that identify a run, and the command that repeats it."""
    lines, verb = _typed(run.manifest), run.manifest.get("verb")
    if verb in ("sweep", "probe"):
        flags = [word for word in run.manifest.get("argv", []) if word == "--require"]
        lines += _again(f"{run.path}/config.yaml", verb, run.name, *flags)
    return [_facts(run.manifest), _reproduced(lines)]


def _typed(manifest: Mapping[str, Any]) -> list[str]:
    """Revision and words of the session that began a run."""
    begun = [*manifest.get("sessions_before", []), manifest][0]
    commit = (begun.get("git") or {}).get("commit")
    typed = [str(word) for word in begun.get("argv", [])]
    lines = [f"git checkout {commit}"] if commit else []
    if typed and typed[0].endswith(ENTRIES):
        lines += ["# as it was typed", shlex.join(["python", "-m", "loadgen", *typed[1:]])]
    return lines


def _again(config: str, verb: str, name: str, *flags: str) -> list[str]:
    """The same run from the saved configuration, into a folder of another name."""
    words = ["python", "-m", "loadgen", verb, "--config", config, f"run={name}-again", *flags]
    return ["# with every value as it was resolved, whatever the defaults have become", shlex.join(words)]


def _reproduced(lines: Sequence[str]) -> Code:
    return Code("The command that reproduces it", CREDENTIALS.sub("", "\n".join(lines)) or UNKNOWN)


def _facts(manifest: Mapping[str, Any]) -> tuple[Fact, ...]:
    host, git = manifest.get("host") or {}, manifest.get("git") or {}
    ended = manifest.get("ended_at")
    versions = {"Python": manifest.get("python"), **(manifest.get("versions") or {})}
    changes = " with local changes" if git.get("dirty") else ""
    clock = manifest.get("clock") or {}
    return (
        ("run", value(manifest.get("run_id"))),
        ("started", moment(manifest.get("started_at"))),
        ("ended", moment(ended) if ended else "did not end"),
        ("verb", value(manifest.get("verb"))),
        ("revision", f"{git['commit']}{changes}" if git.get("commit") else UNKNOWN),
        ("versions", ", ".join(f"{name} {value(version)}" for name, version in versions.items())),
        ("host", f"{value(host.get('name'))}, {value(host.get('system'))}, {value(host.get('cpus'))} CPUs"),
        ("clock", f"{figure(clock['time_scale'])} x real time" if "time_scale" in clock else UNKNOWN),
        ("seeds", f"{manifest.get('seed', UNKNOWN)}, of the prompts {manifest.get('prompt_salt', UNKNOWN)}"),
    )


HOSTS = ("host", "role", "clock offset (ms)", "not reached for (s)", "requests")


def hosts_table(hosts: Sequence[Mapping[str, Any]]) -> Table:
    """The hosts of a run: a load host's requests are those it sent, a node's those it answered."""
    rows = tuple(
        (
            " ".join(filter(None, (host.get("name"), host["address"]))),
            value(host.get("role")),
            f"{figure(host['clock_offset_ms'])} ± {figure(host['clock_within_ms'])}"
            if "clock_offset_ms" in host
            else "",
            figure(host.get("lost_s")),
            value(host.get("requests")),
        )
        for host in hosts
    )
    return Table("Hosts, as seen from the driver's", HOSTS, rows)


def _engine(manifest: Mapping[str, Any]) -> str:
    """Arguments and models as the servers report them; empty if none does."""
    server = manifest.get("server") or {}
    replicas = {name: replica.get("told") for name, replica in (server.get("replicas") or {}).items()}
    tree = {"models": server.get("models"), "engine": server.get("engine"), "replicas": replicas}
    known = {key: value for key, value in tree.items() if value}
    return CREDENTIALS.sub("", json.dumps(known, indent=2, sort_keys=True)) if known else ""
