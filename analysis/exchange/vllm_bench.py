"""Read results of `vllm bench serve --save-result --save-detailed` as vLLM 0.32.0 writes them.

Field by field: `start_times` (the send, on a clock of its own), `queue_times` (from release to send, not in
every version), `ttfts`, `itls` and `latencies` in seconds from the send, `errors` (empty if answered).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.exchange import foreign
from analysis.exchange.foreign import Foreign, OfferedLoad, Row, Trio
from analysis.results.runs import RunError

TOOL = "vllm bench serve"
SUMMARY = {"backend", "model_id", "num_prompts", "request_rate", "completed"}
DETAIL = ("ttfts", "itls", "output_lens", "input_lens", "errors")
OWN = {"ttft_from_send": "ttft", "tpot": "tpot", "itl": "itl", "e2e_from_send": "e2el"}
NOTES = (
    foreign.DUE_UNKNOWN,
    "the tool's version and the time zone of its date are not in the file",
    foreign.LENGTH_UNKNOWN,
)


def fits(tree: Any) -> bool:
    """True for the tree of such a file, detailed or not."""
    return isinstance(tree, dict) and tree.keys() >= SUMMARY


def read(tree: Mapping[str, Any], path: Path, part: str = "") -> Foreign:
    """Read one load. Raises RunError for a result that was saved without its requests."""
    missing = [name for name in DETAIL if name not in tree]
    if missing:
        raise RunError(
            f"{path} has no {missing[0]} of single requests: run {TOOL} with --save-result --save-detailed"
        )
    if not tree["ttfts"]:
        raise RunError(f"{path} holds no request: nothing can be judged")
    columns = [tree[name] for name in DETAIL]
    if len({len(column) for column in columns}) > 1:
        raise RunError(f"{path} is not whole: its lists of requests differ in length")
    requests = foreign.table(_rows(tree))
    notes = [*NOTES, *foreign.assumed_length(requests), *foreign.released(tree.get("queue_times") or (), 1e3)]
    return Foreign(path, TOOL, "unknown", requests, False, _asked(tree), _own(tree), tuple(notes), part)


def _rows(tree: Mapping[str, Any]) -> list[Row]:
    count = len(tree["ttfts"])
    starts, ends = tree.get("start_times") or [None] * count, tree.get("latencies") or [None] * count
    rows = []
    for first_s, gaps_s, output, prompt, error, start_s, whole_s in zip(
        *(tree[name] for name in DETAIL), starts, ends, strict=True
    ):
        failed = foreign.failure(error, None, first_s > 0) if error else {}
        row = failed or _answer(first_s, gaps_s, output, whole_s)
        rows.append(row | {"due_ns": foreign.ns(start_s), "prompt_tokens": prompt or None})
    return rows


def _answer(first_s: float, gaps_s: list[float], output: int, whole_s: float | None) -> Row:
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


def _asked(tree: Mapping[str, Any]) -> OfferedLoad:
    """The offered load; a rate of `inf` means all requests at once."""
    rate, held = float(tree["request_rate"]), tree.get("max_concurrency")
    burstiness = float(tree.get("burstiness") or 1.0)
    finite = rate != float("inf")
    arrivals = "Poisson" if burstiness == 1 else f"gamma, burstiness {burstiness:g}"
    return OfferedLoad(
        rate_qps=rate if finite else None,
        arrivals=arrivals if finite else "all at once",
        concurrency=held,
        model=tree["model_id"],
        open_loop=finite and held is None,
    )


def _own(tree: Mapping[str, Any]) -> dict[str, Trio]:
    quantiles = {
        ours: foreign.percentiles(tree, (f"median_{theirs}_ms", f"p90_{theirs}_ms", f"p99_{theirs}_ms"))
        for ours, theirs in OWN.items()
    }
    return {name: figures for name, figures in quantiles.items() if any(f is not None for f in figures)}
