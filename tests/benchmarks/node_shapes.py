"""What each shape of a node attains and serves: one engine, two, and engines split into prefill and decode.

python -m tests.benchmarks.node_shapes                    both tables (some ten minutes on two cores)
python -m tests.benchmarks.node_shapes --quick            fewer rates, cells and draws (a minute)
python -m tests.benchmarks.node_shapes --figure FILE.svg  the first table as a figure too

The first table replays an experiment of the vLLM blog of 2026-04-07 on MI300X (100 requests of 2000/1000,
arrivals of `vllm bench serve` with seed 0) and counts those with TTFT < 1 s and an own p99 gap < 50 ms,
both at once. The second one is the capacity of an MI325X node at 5600/140. Intervals (95 %) are those of the
constants; what was assumed of transfers is among them.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis.figures import canvas
from analysis.stats.estimate import span
from conf import Experiment, load
from conf.constants import replaced
from loadgen.cli.engine_model import parts, predict
from loadgen.predict.draws import DEPLOYMENT_SCALE, LAYOUT_SCALE, drawn
from loadgen.predict.grid import Answered, ratio
from loadgen.predict.uncertainty import drawn_quantile
from loadgen.traffic.schedule import Floats
from loadgen.traffic.traffic import bench_arrivals_s
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.balancer import Balance
from serve_apps.engine_model.service.service import LATE_GAP, Replicas, Requests, late_gaps_s, serve

COUNT, INPUT, OUTPUT = 100, 2000, 1000
"""Requests of the blog's experiment, and their tokens."""
TTFT_BOUND_S, GAP_BOUND_S = 1.0, 0.05
NODE = ("hardware=mi300x", "cluster=mi325x_1n", "model.kv_cache=bf16", "engine.max_model_len=16384")
WHOLE = (*NODE, "engine.enable_prefix_caching=false", "engine.max_num_batched_tokens=8192")
SPLIT = (*NODE, "engine.enable_prefix_caching=false", "layout=1p1d_tp4_ep4")
BLOG = {
    "one TP8/EP8": (*WHOLE, "layout=dp1_tp8_ep8"),
    "two TP4/EP4": (*WHOLE, "layout=dp2_tp4_ep4"),
    "1P1D read": (*SPLIT, "layout.transfer_mode=read"),
    "1P1D write": (*SPLIT, "layout.transfer_mode=write"),
}
"""The blog's four configurations: budget 8192, or as conf/layout/1p1d_tp4_ep4.yaml has it."""
RATES_QPS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
PUBLISHED_AT_QPS = 8.0
PUBLISHED = {"one TP8/EP8": 26, "two TP4/EP4": 30, "1P1D read": 70, "1P1D write": 73}
"""Good requests of 100 at 8 requests/s, by the blog's text and figures; the scatter of 100 is 9 points."""
DRAWS, QUICK_DRAWS = 48, 8
SHAPES = ("dp1_tp8_ep8", "dp2_tp4_ep4", "dp4_tp2_ep2", "1p1d_tp4_ep4", "2p1d", "3p1d_tp2_ep2")
HITS, SLOS = (0.0, 0.5, 0.95), ("default", "interactive")
QUICK_S = 1200
"""Virtual node seconds at each rate of a quick run."""


class Attained(NamedTuple):
    """Share of good requests with its 95 % interval, and the shares that keep one bound alone."""

    share: float
    low: float
    high: float
    ttft: float
    gap: float


def seen(experiment: Experiment, rate_qps: float) -> tuple[Floats, Floats]:
    """TTFT and own p99 gap (s) of each request of the blog's experiment; several engines take turns."""
    sent_s = bench_arrivals_s(COUNT, rate_qps)
    words = [np.full(COUNT, tokens) for tokens in (INPUT, OUTPUT, 0)]
    replicas = Replicas(experiment.replicas, Balance("roundrobin"))
    times = serve(EngineKind.of(*parts(experiment)), Requests(sent_s, words), replicas, tokens=True)
    gap_s = late_gaps_s(times.token_s, np.asarray(words[1]), LATE_GAP)
    return times.first_token_s - sent_s, gap_s


def good(experiment: Experiment, values: Mapping[str, float], rate_qps: float) -> tuple[float, float, float]:
    """Shares of requests within both bounds, within that of TTFT, and within that of gaps.

    The blog's team measured what the constants are fitted to, so its pace and that of the layouts are known.
    """
    known = {**values, DEPLOYMENT_SCALE: 1.0, LAYOUT_SCALE: 1.0}
    ttft_s, gap_s = seen(replaced(experiment, known), rate_qps)
    early, smooth = ttft_s < TTFT_BOUND_S, gap_s < GAP_BOUND_S
    return float(np.mean(early & smooth)), float(np.mean(early)), float(np.mean(smooth))


def attained(name: str, rates_qps: Sequence[float], draws: int) -> list[Attained]:
    """The table's column of one configuration."""
    experiment = load([*BLOG[name]])
    sets = drawn(experiment, draws)
    out = []
    for rate_qps in rates_qps:
        share, ttft, gap = good(experiment, {}, rate_qps)
        moved = [good(experiment, values, rate_qps)[0] for values in sets]
        low, high = (drawn_quantile(moved, at) for at in (0.025, 0.975))
        out.append(Attained(share, min(low, share), max(high, share), ttft, gap))
    return out


def attainment_lines(rates_qps: Sequence[float], found: Mapping[str, Sequence[Attained]]) -> Iterator[str]:
    """The first table as Markdown, and how far off the published row is."""
    yield f"| requests/s | {' | '.join(found)} |"
    yield "|---" * (len(found) + 1) + "|"
    for at, rate_qps in enumerate(rates_qps):
        cells = (
            f"{_percent(one[at].share)} [{_percent(one[at].low)}, {_percent(one[at].high)}]"
            for one in found.values()
        )
        yield f"| {rate_qps:g} | {' | '.join(cells)} |"
    if PUBLISHED_AT_QPS in rates_qps:
        at = list(rates_qps).index(PUBLISHED_AT_QPS)
        yield f"| published at {PUBLISHED_AT_QPS:g} | {' | '.join(str(PUBLISHED[name]) for name in found)} |"
        away = (f"{100 * one[at].share - PUBLISHED[name]:+.0f} points" for name, one in found.items())
        yield f"| the model's error | {' | '.join(away)} |"
        alone = (f"{_percent(one[at].ttft)}, {_percent(one[at].gap)}" for one in found.values())
        yield f"| TTFT alone, gap alone at {PUBLISHED_AT_QPS:g} | {' | '.join(alone)} |"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def capacity_lines(quick: bool) -> Iterator[str]:
    """The second table as Markdown: a line for each bound and share of hits as it is known."""
    shapes, draws = (SHAPES[1::2], QUICK_DRAWS) if quick else (SHAPES, DRAWS)
    yield f"| bounds, hits | {' | '.join(shapes)} |"
    yield "|---" * (len(shapes) + 1) + "|"
    with ProcessPoolExecutor(1 if quick else 2) as pool:
        for slo in SLOS:
            for hit in HITS[:: 2 if quick else 1]:
                words = ["search=virtual", f"slo={slo}", f"workload.prefix_hit={hit}"]
                words += [f"search.budget_s={QUICK_S}"] if quick else []
                experiments = [load([*words, f"layout={shape}", *_way(shape)]) for shape in shapes]
                result = [predict(one, pool.map, draws) for one in experiments]
                first = result[0], experiments[0]
                cells = (_cell(pair, first) for pair in zip(result, experiments, strict=True))
                yield f"| {slo}, {100 * hit:.0f} % | {' | '.join(cells)} |"


def _cell(asked: Answered, first: Answered) -> str:
    """QPS per node with its interval, the limit that binds, and the ratio to the first shape."""
    capacity = asked[0].capacity
    if capacity is None or first[0].capacity is None:
        return f"none: {asked[0].reason}"
    q = capacity.qps_per_node
    own = f"{span(q)} {capacity.binding.upper()}"
    if asked is first or asked[1] is first[1]:
        return own
    over = ratio(asked, first)
    return f"{own}; x {over.value:.2f} [{over.low:.2f}, {over.high:.2f}]"


def _way(shape: str) -> list[str]:
    """A split node keeps its prefix cache with the connector that knows one."""
    return ["layout.connector=nixl"] if "p1d" in shape else []


def figure(rates_qps: Sequence[float], found: Mapping[str, Sequence[Attained]]) -> str:
    """The first table as an SVG: a line for each configuration, its interval as a bar, the published row."""

    def draw(figure: canvas.Figure) -> None:
        ax = figure.subplots()
        canvas.label(ax, "requests per second", "good requests, % of 100")
        for (name, one), look in zip(found.items(), canvas.STYLES, strict=False):
            share = 100 * np.array(one)[:, :3]
            around = np.abs(share[:, 1:] - share[:, :1]).T
            ax.errorbar(rates_qps, share[:, 0], around, label=name, capsize=2, elinewidth=0.6, **look)
            ax.plot(
                [PUBLISHED_AT_QPS + 0.12],
                [PUBLISHED[name]],
                marker="*",
                markersize=9,
                color=look["color"],
                linestyle="none",
            )
        canvas.note(ax, PUBLISHED_AT_QPS + 0.3, 76, "stars: published (± 9)")
        ax.set_ylim(0, 104)

    return canvas.svg(draw, canvas.HEIGHT_IN, "shapes", canvas.WIDTH_IN)


def main() -> int:
    """Returns 0; prints each table as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rates, cells and draws")
    parser.add_argument("--figure", type=Path, help="write the first table as an SVG")
    parser.add_argument("--only", choices=("attainment", "capacity"), help="one of the two tables")
    options = parser.parse_args()
    print(f"machine load {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores\n", flush=True)
    if options.only != "capacity":
        rates_qps = RATES_QPS[1::2] if options.quick else RATES_QPS
        draws = QUICK_DRAWS if options.quick else DRAWS
        result = {name: attained(name, rates_qps, draws) for name in BLOG}
        print("\n".join(attainment_lines(rates_qps, result)) + "\n", flush=True)
        if options.figure:
            options.figure.write_text(figure(rates_qps, result) + "\n")
    if options.only != "attainment":
        for line in capacity_lines(options.quick):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
