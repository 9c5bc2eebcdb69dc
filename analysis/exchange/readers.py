"""Read the loads in a result file of vLLM's benchmark, GuideLLM or AIPerf.

`vllm bench serve --save-result --save-detailed`, as vLLM 0.32.0 writes it: `start_times` (the send, on a
clock of its own), `ttfts`, `itls` and `latencies` in seconds from the send, `errors` (empty if answered).

GuideLLM 0.8.1, one load per benchmark: times are wall seconds. `info.timings.targeted_start` is the planned
send of a rate strategy, so that latencies can count from the due time as ours do; of a closed loop it is no
plan, and the send replaces it.

AIPerf 0.13.0, `profile_export.jsonl`, a line per request: `metadata.request_start_ns` is the send by the wall
clock; `metrics.*.value` in ms count from the send. A summary file beside it, which is read if it exists, has
its version and its own percentiles.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.exchange import foreign
from analysis.exchange.foreign import NS_PER_MS, NS_PER_S, WARMUP, WINDOW, Foreign, OfferedLoad, Row, Trio
from analysis.results.runs import RunError
from analysis.rows import metrics, records
from analysis.stats.quantiles import quantile
from conf.io import bounded_yaml

VLLM_BENCH, GUIDELLM, AIPERF = "vllm bench serve", "GuideLLM", "AIPerf"
TOOLS = f"{VLLM_BENCH}, {GUIDELLM} or {AIPERF}"
QUANTILES = ("p50", "p90", "p99")
KNOWN: Mapping[str, Any] = bounded_yaml.read(Path(__file__).with_name("tools.yaml").read_text())
"""By tool, its names of our latencies, and the notes that every result of it has."""

Tree = Mapping[str, Any]


def read(trees: Sequence[Any], path: Path) -> Iterator[Foreign]:
    """The loads in the JSON values of a file. Raises RunError for one of no known tool."""
    first = trees[0]
    are_objects = all(isinstance(tree, dict) for tree in trees)
    if are_objects and all(isinstance(tree.get("metadata"), dict) and "metrics" in tree for tree in trees):
        yield _aiperf(trees, path)
    elif are_objects and len(trees) == 1 and "guidellm_version" in (first.get("metadata") or {}):
        yield from _guidellm(first, path)
    elif are_objects and all(tree.keys() >= VLLM_SUMMARY for tree in trees):
        for number, tree in enumerate(trees, 1):
            yield _vllm_bench(tree, path, f"line {number}" if len(trees) > 1 else "")
    else:
        looks = f"it holds a {type(first).__name__}"
        if isinstance(first, dict) and "aiperf_version" in first:
            looks = f"it is {AIPERF}'s summary; give profile_export.jsonl, which has the single requests"
        elif isinstance(first, dict):
            looks = f"it holds {', '.join(list(map(str, first))[:4]) or 'nothing'}"
        raise RunError(f"{path} is not a result of {TOOLS}: {looks}")


VLLM_SUMMARY = {"backend", "model_id", "num_prompts", "request_rate", "completed"}
VLLM_DETAIL = ("ttfts", "itls", "output_lens", "input_lens", "errors")


def _vllm_bench(tree: Tree, path: Path, part: str) -> Foreign:
    missing = [name for name in VLLM_DETAIL if name not in tree]
    if missing:
        raise RunError(
            f"{path} has no {missing[0]} of single requests: run {VLLM_BENCH} with --save-result "
            "--save-detailed"
        )
    if not tree["ttfts"]:
        raise RunError(f"{path} holds no request: nothing can be judged")
    count = len(tree["ttfts"])
    starts, ends = tree.get("start_times") or [None] * count, tree.get("latencies") or [None] * count
    rows = []
    for first_s, gaps_s, output, prompt, error, start_s, whole_s in zip(
        *(tree[name] for name in VLLM_DETAIL), starts, ends, strict=True
    ):
        row = foreign.failure(error, None, first_s > 0) if error else {}
        row = row or _vllm_answer(first_s, gaps_s, output, whole_s)
        rows.append(row | {"due_ns": foreign.ns(start_s), "prompt_tokens": prompt or None})
    requests = foreign.table(rows)
    rate, held = float(tree["request_rate"]), tree.get("max_concurrency")
    burstiness = float(tree.get("burstiness") or 1.0)
    finite = rate != float("inf")  # infinite: all requests at once
    arrivals = "Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}"
    offered = OfferedLoad(
        rate_qps=rate if finite else None,
        arrivals=arrivals if finite else "all at once",
        concurrency=held,
        model=tree["model_id"],
        open_loop=finite and held is None,
    )
    own = {
        ours: foreign.percentiles(tree, (f"median_{theirs}_ms", f"p90_{theirs}_ms", f"p99_{theirs}_ms"))
        for ours, theirs in KNOWN["vllm"]["own"].items()
    }
    own = {name: figures for name, figures in own.items() if any(ms is not None for ms in figures)}
    notes = (*KNOWN["vllm"]["notes"], *foreign.assumed_length(requests))
    return Foreign(path, VLLM_BENCH, "unknown", requests, False, offered, own, notes, part)


def _vllm_answer(first_s: float, gaps_s: list[float], output: int, whole_s: float | None) -> Row:
    """Times of an answer; older versions leave out `latencies`, the sum of the rest."""
    first = foreign.ns(first_s) if first_s > 0 else None
    last = foreign.ns(whole_s if whole_s else first_s + sum(gaps_s))
    return {
        **foreign.shortage(output, first),
        "output_tokens": output,
        "first_token_offset_ns": first,
        "last_token_offset_ns": None if first is None else last,
        "end_offset_ns": last,
        "events": len(gaps_s) + 1,
        # Without gaps between several tokens they were not recorded, which is not the same as none.
        "itl_us": [round(gap * 1e6) for gap in gaps_s] if gaps_s or output < 2 else None,
    }


RATED = ("constant", "poisson", "trace")
"""GuideLLM's strategies whose `targeted_start` is a schedule."""


def _guidellm(tree: Tree, path: Path) -> Iterator[Foreign]:
    if not tree["benchmarks"]:
        raise RunError(f"{path} holds no benchmark: nothing can be judged")
    for index, benchmark in enumerate(tree["benchmarks"]):
        strategy = benchmark["config"]["strategy"]
        rate = f", {strategy['rate']:g} requests/s" if strategy.get("rate") else ""
        part = f"{index}: {strategy['type_']}{rate}" if len(tree["benchmarks"]) > 1 else ""
        yield _guidellm_load(benchmark, path, str(tree["metadata"]["guidellm_version"]), part)


def _guidellm_load(benchmark: Tree, path: Path, version: str, part: str) -> Foreign:
    strategy, figures = benchmark["config"]["strategy"], benchmark["metrics"]
    due_known = strategy["type_"] in RATED
    kinds = ("successful", "errored", "incomplete")
    stats = [(kind, request) for kind in kinds for request in benchmark["requests"].get(kind) or ()]
    # A request that never began before the tool ended was not sent.
    sent = [each for each in stats if each[1]["info"]["timings"].get("request_start") is not None]
    if not sent:
        raise RunError(f"{path} holds no request of its benchmark {part or '0'}: nothing can be judged")
    requests = foreign.table(_guidellm_row(kind, request, due_known) for kind, request in sent)
    model = (benchmark["config"].get("backend") or {}).get("model")
    offered = OfferedLoad(
        strategy.get("rate"), str(strategy["type_"]), strategy.get("streams"), model, due_known
    )
    own = {
        ours: foreign.percentiles(theirs["percentiles"], QUANTILES, scale)
        for ours, (name, scale) in KNOWN["guidellm"]["own"].items()
        if (theirs := (figures.get(name) or {}).get("successful") or {}).get("count")
    }
    due = "a closed loop has no due times: latencies count from the send"
    if due_known:
        lag_ms = quantile(metrics.send_lag(requests), 0.99)
        lag = f"its client's lag was {lag_ms:.1f} ms (p99), not in its own figures"
        due = f"its planned times are reported: {lag}"
    notes = [*KNOWN["guidellm"]["notes"], due, *foreign.assumed_length(requests)]
    totals = figures["request_totals"]
    if totals["total"] > len(stats):
        notes.append(f"the file holds {len(stats)} of its {totals['total']} requests: figures are of those")
    if totals.get("incomplete"):
        notes.append(
            f"{totals['incomplete']} requests were in flight when it ended: neither answered nor failed"
        )
    notes += [f"its own warning: {request['message']}" for request in benchmark.get("warnings") or ()]
    return Foreign(path, GUIDELLM, version, requests, due_known, offered, own, tuple(notes), part)


def _guidellm_row(kind: str, request: Tree, due_known: bool) -> Row:
    times = request["info"]["timings"]
    sent = times["request_start"]
    due = times["targeted_start"] if due_known and times.get("targeted_start") is not None else sent
    try:
        body = json.loads(request.get("request_args") or "{}").get("body")
    except (ValueError, AttributeError):
        body = None
    body = body if isinstance(body, dict) else {}
    end = times.get("request_end") or times.get("resolve_end")
    instants = {
        "first_token": times.get("first_token_iteration"),
        "last_token": times.get("last_token_iteration"),
        "end": end or None,
    }
    offsets = {
        f"{name}_offset_ns": None if at is None else foreign.ns(at - due) for name, at in instants.items()
    }
    return (
        _guidellm_outcome(kind, request, body)
        | offsets
        | {
            "turn": request["info"].get("turn_index") or 0,
            "due_ns": foreign.ns(due),
            "scheduled_at": datetime.fromtimestamp(due, UTC),
            "send_offset_ns": foreign.ns(sent - due) if due_known else None,
            "requested_output_tokens": body.get("max_tokens") if body.get("ignore_eos") else None,
            "prompt_tokens": request.get("prompt_tokens"),
            "cached_tokens": request.get("cached_tokens"),
            "output_tokens": request.get("output_tokens"),
            "events": times.get("token_iterations"),
        }
    )


def _guidellm_outcome(kind: str, request: Tree, body: Tree) -> Row:
    output, first_s = request.get("output_tokens"), request["info"]["timings"].get("first_token_iteration")
    if kind == "incomplete":
        return {"status": records.PENDING}
    if kind == "errored":
        return foreign.failure(str(request["info"].get("error") or ""), None, first_s is not None)
    if body.get("ignore_eos") and output and output != body.get("max_tokens"):
        error = f"{output} tokens instead of {body.get('max_tokens')}"
        return {"status": "truncated", "error_kind": "token_count", "error": error}
    return foreign.shortage(output, foreign.ns(first_s))


AIPERF_SUMMARY = "profile_export_aiperf.json"
"""The summary beside AIPerf's records; not needed."""


def _aiperf(lines: Sequence[Tree], path: Path) -> Foreign:
    """All records of a file, which are one load."""
    rows = [_aiperf_row(line) for line in lines]
    if not any(row["phase"] == WINDOW for row in rows):
        raise RunError(f"{path} holds no request after its warm-up: nothing can be judged")
    requests, summary = foreign.table(rows), _aiperf_summary(path.with_name(AIPERF_SUMMARY), rows)
    notes = [*KNOWN["aiperf"]["notes"], *foreign.assumed_length(requests)]
    if not all("usage_completion_tokens" in line["metrics"] for line in lines if not line.get("error")):
        notes.append("output tokens were counted by the client's tokenizer, not reported by the server")
    if not summary:
        what = "its own figures, its version and the asked rate"
        notes.append(f"{what} are in {AIPERF_SUMMARY}, not beside this file")
    own: dict[str, Trio] = {
        ours: foreign.percentiles(summary[theirs], QUANTILES)
        for ours, theirs in KNOWN["aiperf"]["own"].items()
        if theirs in summary
    }
    version, offered = str(summary.get("aiperf_version", "unknown")), _aiperf_offered(summary)
    return Foreign(path, AIPERF, version, requests, False, offered, own, tuple(notes))


AIPERF_PHASES = {"profiling": WINDOW, "warmup": WARMUP}


def _aiperf_row(line: Tree) -> Row:
    meta = line["metadata"]
    start = int(meta["request_start_ns"])
    return _aiperf_outcome(line) | {
        "phase": AIPERF_PHASES[meta["benchmark_phase"]],
        "turn": meta.get("turn_index") or 0,
        "due_ns": start,
        "scheduled_at": datetime.fromtimestamp(start / NS_PER_S, UTC),
    }


def _aiperf_outcome(line: Tree) -> Row:
    if line["metadata"].get("was_cancelled"):
        return {"status": records.PENDING}
    if error := line.get("error"):
        # AIPerf gives errors of other kinds than HTTP other codes, or none.
        code = error.get("code")
        http_status = int(code) if isinstance(code, int) and 400 <= code < 600 else None
        return foreign.failure(str(error.get("message") or error.get("type")), http_status)
    values = {name: metric["value"] for name, metric in line["metrics"].items()}
    first, last = (round(values[name] * NS_PER_MS) for name in ("time_to_first_token", "request_latency"))
    output = values.get("usage_completion_tokens", values.get("output_sequence_length"))
    gaps_ms = values.get("inter_chunk_latency")
    return {
        **foreign.shortage(output, first),
        "first_token_offset_ns": first,
        "last_token_offset_ns": last,
        "end_offset_ns": last,
        "prompt_tokens": values.get("usage_prompt_tokens", values.get("input_sequence_length")),
        "cached_tokens": values.get("usage_prompt_cache_read_tokens"),
        "output_tokens": output,
        "events": None if gaps_ms is None else len(gaps_ms) + 1,
        "itl_us": None if gaps_ms is None else [round(1e3 * gap) for gap in gaps_ms],
    }


def _aiperf_summary(path: Path, rows: Sequence[Row]) -> Tree:
    """The summary beside the records; empty if there is none, or one of another number of requests."""
    try:
        tree: Tree = json.loads(path.read_bytes())
        counted = tree["request_count"]["avg"] + tree.get("error_request_count", {}).get("avg", 0)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return tree if counted == sum(row["phase"] == WINDOW for row in rows) else {}


def _aiperf_offered(summary: Tree) -> OfferedLoad:
    config = summary.get("input_config") or {}
    phase: Tree = next((p for p in config.get("phases") or () if p.get("kind") == "profiling"), {})
    models = [item.get("name") for item in (config.get("models") or {}).get("items") or ()]
    rate, held = phase.get("rate"), phase.get("concurrency")
    return OfferedLoad(
        rate_qps=rate,
        arrivals=str(phase.get("type", "unknown")),
        concurrency=held,
        model=models[0] if models else None,
        open_loop=rate is not None and held is None if phase else None,
    )
