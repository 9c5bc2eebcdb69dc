"""From files to studies, by their columns.

config,request,ttft_s,itl_s                     requests of the blog's experiment; itl_s is a p99 gap
configuration,rate_qps,slo_attainment_pct       share of requests with TTFT < 1 s and p99 gap < 50 ms
configuration,rate_qps,metric,value,unit        quantiles and means of the same experiment
hardware,concurrency,backend,metric,value,unit  a closed loop of 10,000 + 1,000 tokens by backend
configuration,quantity,value,unit               layouts of one node at 5600 + 140 tokens, 64 in flight
source,tokens,out_features,in_features,us       FP8 GEMMs
source,cus,tokens,model_dim,inter_dim,...,us    fused mixtures
repo,gpu,model,scenario,samples_s,...           MLPerf Inference, with a file input_length,output_length
table,model,phase,concurrency,...               the MI325X paper's curves
model,...,isl,osl,...,metric,value,unit         closed loops, bursts and batches of anybody
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from conf.kernels import is_known
from tests.benchmarks.evidence import kernels, loops, mlperf, paper
from tests.benchmarks.evidence.blog import (
    COUNT,
    FOLDER,
    GIVEN,
    HARDWARE,
    METRICS,
    RATE_QPS,
    STATISTIC,
    VLLM_NAMES,
    Attainment,
    ClosedLoop,
    Ratio,
    Requests,
    Statistics,
    Weights,
    layout_words,
)
from tests.benchmarks.evidence.figures import Rows, Study, by, rows_of

PAIRS = {"input_length", "output_length"}


OTHERS = tuple(
    FOLDER / name
    for name in (
        "mlperf_llama2_70b.csv",
        "lengths_llama2_70b_openorca.csv",
        "rocm_vllm_llama_405b.csv",
        "inferencex_deepseek_r1_fp8.csv",
        "vllm_pr_17535.csv",
    )
)
"""Sources of other models and releases, which the default model's fit does not have."""


def read(paths: Sequence[Path] = GIVEN) -> tuple[list[Study], list[str]]:
    """The studies of files by their columns, and what was skipped with the reason. Raises ValueError."""
    studies: list[Study] = []
    skipped: list[str] = []
    files = {path: rows_of(path) for path in paths}
    pairs = next((path for path, rows in files.items() if set(rows[0]) >= PAIRS), None)
    for path, rows in files.items():
        columns = set(rows[0])
        if columns >= PAIRS:
            skipped.append(f"{path.name}: lengths of requests, which the rows of MLPerf are played with")
        elif {"repo", "scenario", "samples_s"} <= columns:
            studies += mlperf.submissions(rows, pairs, skipped)
        elif {"phase", "concurrency", "total_tok_s", "p99_latency_s"} <= columns:
            studies += paper.curves(path, skipped)
        else:
            kind = next((make for needed, make in KINDS if needed <= columns), None)
            if kind is None:
                skipped.append(
                    f"{path.name}: no latency or rate by load; its columns are {', '.join(rows[0])}"
                )
            else:
                studies += kind(rows, skipped)
    return studies, skipped


def _known(rows: Rows, column: str, skipped: list[str]) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The rows of each layout that the model plays; of others only the name is kept."""
    for (name,), part in by(rows, column).items():
        if layout_words(name):
            yield name, part
        else:
            skipped.append(f"{name}: {len(part)} rows of a shape that the model does not know yet")


def _requests(rows: Rows, skipped: list[str]) -> list[Study]:
    items: list[Study] = []
    for name, of_name in _known(rows, "config", skipped):
        rates = by([{"rate_qps": str(RATE_QPS), **row} for row in of_name], "rate_qps")
        for (rate,), part in rates.items():
            numbers = tuple(int(row["request"]) for row in part)
            if not set(numbers) <= set(range(COUNT)):
                raise ValueError(
                    f"{name}: requests are numbered 0 to {COUNT - 1}, not {min(numbers)} to {max(numbers)}"
                )
            seen = tuple((float(row["ttft_s"]), float(row["itl_s"])) for row in part)
            items.append(Requests(name, numbers, seen, float(rate)))
    return items


def _attainments(rows: Rows, skipped: list[str]) -> list[Study]:
    return [
        Attainment(
            name,
            tuple(float(row["rate_qps"]) for row in part),
            tuple(float(row["slo_attainment_pct"]) / 100 for row in part),
        )
        for name, part in _known(rows, "configuration", skipped)
    ]


def _statistics(rows: Rows, skipped: list[str]) -> list[Study]:
    result: list[Study] = []
    for name, of_name in _known(rows, "configuration", skipped):
        for (rate,), part in by(of_name, "rate_qps").items():
            known = {row["metric"].strip().lower().replace(" ", "_"): row for row in part}
            skipped += [f"{name} {other}: an unknown metric" for other in known if not STATISTIC.match(other)]
            values = tuple(
                (metric, float(row["value"]) / (1e3 if row["unit"] == "ms" else 1))
                for metric, row in known.items()
                if STATISTIC.match(metric)
            )
            result += [Statistics(name, float(rate), values)] if values else []
    return result


def _layouts(rows: Rows, skipped: list[str]) -> list[Study]:
    kinds = {"throughput over 1xTP8": Ratio, "weights per GPU": Weights}
    items: list[Study] = []
    for name, part in _known(rows, "configuration", skipped):
        for row in part:
            if row["quantity"] in kinds:
                items.append(kinds[row["quantity"]](name, float(row["value"])))
            else:
                skipped.append(f"{name} {row['quantity']}: no quantity that the model knows")
    return items


def _closed_loops(rows: Rows, skipped: list[str]) -> list[Study]:
    items: list[Study] = []
    for (hardware, concurrency, backend), part in by(rows, "hardware", "concurrency", "backend").items():
        named = VLLM_NAMES.get(backend, backend)
        if hardware not in HARDWARE or not is_known(named):
            skipped.append(
                f"{hardware} {backend} C={concurrency}: hardware or backend that the model does not know"
            )
            continue
        # Milliseconds in the file, seconds here.
        known = {row["metric"]: float(row["value"]) / (1e3 if row["unit"] == "ms" else 1) for row in part}
        asked = tuple((name, known[name]) for name in METRICS if name in known)
        others = sorted(set(known) - set(METRICS))
        skipped += [f"{hardware} {backend} C={concurrency} {name}: an unknown metric" for name in others]
        if asked:
            items.append(ClosedLoop(hardware, int(concurrency), asked, named))
    return items


Make = Callable[[Rows, list[str]], Sequence[Study]]
KINDS: Sequence[tuple[set[str], Make]] = (
    ({"config", "request", "ttft_s", "itl_s"}, _requests),
    ({"configuration", "rate_qps", "slo_attainment_pct"}, _attainments),
    ({"configuration", "rate_qps", "metric", "value", "unit"}, _statistics),
    ({"hardware", "concurrency", "backend", "metric", "value", "unit"}, _closed_loops),
    ({"configuration", "quantity", "value", "unit"}, _layouts),
    ({"source", "tokens", "out_features", "in_features", "us"}, lambda rows, skipped: kernels.gemms(rows)),
    ({"source", "cus", "tokens", "inter_dim", "experts", "topk", "us"}, kernels.mixtures),
    ({"model", "isl", "osl", "metric", "value", "unit"}, loops.loops),
)
"""Columns of a format, and who reads its rows."""
