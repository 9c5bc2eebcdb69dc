"""Routing policies compared on the virtual clock: fleets of 4 to 3,000 nodes, and what a lost replica does.

    python -m tests.benchmarks.routing_virtual            # both tables, some fifteen minutes on two cores
    python -m tests.benchmarks.routing_virtual --quick    # 4 nodes, a virtual hour, few draws: a minute

Everything is of the default engine model and `workload=character`: nothing here was measured over HTTP.
"""

import argparse
import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.results.json_border import to_tree
from analysis.stats.estimate import span
from analysis.stats.quantiles import quantile
from conf import Experiment
from loadgen.cli import engine_model, prediction
from loadgen.cli.words import experiment_of as asked
from loadgen.predict.grid import ratio
from loadgen.traffic.prefix_sharing import cache_warmup_s, shared_prefixes
from loadgen.traffic.schedule import NS
from loadgen.traffic.traffic import Traffic
from serve_apps.engine_model.engine.kinds import EngineKind
from serve_apps.engine_model.service.balancer import Balance, Loss
from serve_apps.engine_model.service.prefixes import session_pieces
from serve_apps.engine_model.service.service import Replicas, Requests, serve
from serve_apps.routing import policies

POLICIES = ("consistent_hash", "client_side", "bounded_hash", "leastconn", "pow2", "round_robin")
FLEETS, LOSSES = (4, 64, 3000), (4, 64)
DRAWS = 30
LOAD = 0.7
"""Of its own capacity each policy is at so much when it loses a replica (our choice)."""
BEFORE_S, AFTER_S, BIN_S = 240.0, 900.0, 10.0
SETTLED_S = 240.0
"""The last stretch stands for the state that a service without its replica comes to."""
NEAR_HIT, NEAR_TTFT = 0.02, 0.25
"""Recovered: three bins in a row so near to that state, by the hit rate and as a share of the p90."""


def experiment(policy: str, nodes: int, *words: str) -> Experiment:
    cluster = ["cluster.session=fake", f"cluster.nodes={nodes}"]
    return asked("predict", ["workload=character", *cluster, f"routing={policy}", *words], None)


def capacities(fleets: tuple[int, ...], draws: int, *words: str) -> dict[tuple[str, int], Any]:
    """The capacity of every policy and fleet, printed as it is found."""
    head = (
        "routing",
        "nodes",
        "QPS/node",
        "95 % interval",
        "hit %",
        "rep/session",
        "max/mean",
        "sticky/this",
        "s",
    )
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    result: dict[tuple[str, int], Any] = {}
    with prediction.processes() as spread:
        for nodes in fleets:
            for policy in POLICIES:
                began = time.monotonic()
                cell = experiment(policy, nodes, *words)
                result[policy, nodes] = engine_model.predict(cell, spread, draws), cell
                print(_row(policy, nodes, result, time.monotonic() - began), flush=True)
    return result


def _row(policy: str, nodes: int, found: Any, took_s: float) -> str:
    tree = to_tree(found[policy, nodes][0])
    seen, q = tree["forecast"], tree["capacity"]["qps_per_node"]
    sticky = found.get(("consistent_hash", nodes))
    over = ratio(sticky, found[policy, nodes]) if sticky else None
    cells = (
        f"`{policy}`",
        f"{nodes}",
        f"{q['value']:.1f}",
        f"{q['low']:.1f} to {q['high']:.1f}",
        f"{100 * seen['cached_share_of_input']:.1f}",
        f"{seen['replicas_per_session']:.2f}",
        f"{seen['max_over_mean_share']:.2f}",
        "" if over is None else span(over),
        f"{took_s:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def rings(fleets: tuple[int, ...], vnodes: int = 1000) -> None:
    """The share of the busiest replica of one ring of every size, if all sessions are alike."""
    for nodes in fleets:
        places, owners = policies.ring([f"1-{each}" for each in range(nodes)], vnodes)
        arcs = np.diff(places, prepend=places[-1:]).astype(np.float64)  # unsigned: the first one wraps around
        share = np.bincount(owners, arcs, nodes) / arcs.sum() * nodes
        print(f"ring of {nodes} x {vnodes}: busiest {share.max():.2f} of the mean, sd {share.std():.3f}")


@dataclass(frozen=True, slots=True)
class Lost:
    """What the loss of one replica did, and how long until hit rate and p90 of TTFT are settled again."""

    moved: float
    cut_off: int
    hit_before: float
    hit_least: float
    hit_after: float
    hit_back_s: float | None
    ttft_before_ms: float
    ttft_most_ms: float
    ttft_after_ms: float
    ttft_back_s: float | None
    over: float


def loss(policy: str, nodes: int, rate_qps: float) -> Lost:
    """One replica of a fleet dies at `rate_qps` per node; the others take what comes from then on."""
    one = experiment(policy, nodes)
    parts = engine_model.parts(one)
    machine = EngineKind.of(*parts)
    filled_s = cache_warmup_s(one.workload, rate_qps, nodes, machine.blocks * machine.spec.block_size)
    at_s, end_s = filled_s + BEFORE_S, filled_s + BEFORE_S + AFTER_S
    bounds = {"window": (0, round(end_s * NS))}
    drawn = Traffic(one.workload).draw(rate_qps * nodes, bounds, window_index=0, first_seq=0, seed=one.seed)
    shared = shared_prefixes(drawn, one.workload)
    assert shared is not None
    balance: Balance = engine_model.balance(one)
    due_s = drawn.due_ns / NS
    asked = drawn.input_tokens, drawn.output_tokens, drawn.shared_tokens
    requests = Requests(due_s, asked, session_pieces(*shared), filled_s)
    served = serve(machine, requests, Replicas(nodes, balance, 1, Loss(0, at_s)))
    failed = (served.replica == 0) & (served.last_token_s > at_s)
    ttft_ms = np.where(failed, np.inf, (served.first_token_s - due_s) * 1e3)
    hits = [served.cached_tokens, drawn.input_tokens]
    return _lost(due_s - at_s, drawn.session, served.replica, hits, ttft_ms, failed, one.slo.ttft_p90_ms)


def _lost(
    from_loss_s: Any, session: Any, replica: Any, hits: Any, ttft_ms: Any, failed: Any, bound_ms: float
) -> Lost:
    def hit(where: Any) -> float:
        return float(hits[0][where].sum() / max(1, hits[1][where].sum()))

    def p90(where: Any) -> float:
        return quantile(ttft_ms[where], 0.9) or 0.0

    before = (from_loss_s >= -BEFORE_S + 60) & (from_loss_s < 0)
    after = from_loss_s >= AFTER_S - SETTLED_S
    bins = [(from_loss_s >= s) & (from_loss_s < s + BIN_S) for s in np.arange(0, AFTER_S, BIN_S)]
    hit_by, p90_by = np.array([hit(b) for b in bins]), np.array([p90(b) for b in bins])
    late = (from_loss_s >= 0) & (from_loss_s < AFTER_S - SETTLED_S)
    return Lost(
        _moved(from_loss_s, session, replica),
        int(failed.sum()),
        *(hit(before), float(hit_by.min()), hit(after)),
        _back(np.abs(hit_by - hit(after)) <= NEAR_HIT),
        *(p90(before), float(p90_by.max()), p90(after)),
        _back(p90_by <= (1 + NEAR_TTFT) * p90(after)),
        float((ttft_ms[late] > bound_ms).mean()),
    )


def _moved(from_loss_s: Any, session: Any, replica: Any) -> float:
    """Of sessions with turns on both sides of the loss, the share whose next turn met another replica."""
    order = np.argsort(session, kind="stable")
    crosses = (np.diff(session[order]) == 0) & (from_loss_s[order][:-1] < 0) & (from_loss_s[order][1:] >= 0)
    return float((replica[order][:-1] != replica[order][1:])[crosses].mean())


def _back(near: Any) -> float | None:
    """The first time from which three bins in a row are near."""
    runs = near[:-2] & near[1:-1] & near[2:]
    return float(np.argmax(runs) * BIN_S) if runs.any() else None


def losses(found: dict[tuple[str, int], Any], fleets: tuple[int, ...]) -> None:
    """One replica lost under every policy, at the same share of each one's own capacity."""
    head = (
        "routing",
        "nodes",
        "QPS/node",
        "sessions moved",
        "cut off",
        "hit % before, least, after",
        "back after s",
        "p90 TTFT ms before, most, after",
        "back after s",
        "over the bound until settled",
    )
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for nodes in fleets:
        for policy in POLICIES:
            rate_qps = LOAD * found[policy, nodes][0].capacity.qps_per_node.value
            it = loss(policy, nodes, rate_qps)
            hit = ", ".join(f"{100 * each:.1f}" for each in (it.hit_before, it.hit_least, it.hit_after))
            ttft = ", ".join(f"{each:.0f}" for each in (it.ttft_before_ms, it.ttft_most_ms, it.ttft_after_ms))
            backs = ["never" if each is None else f"{each:.0f}" for each in (it.hit_back_s, it.ttft_back_s)]
            moved, over = f"{100 * it.moved:.1f} %", f"{100 * it.over:.1f} %"
            cells = (
                f"`{policy}`",
                f"{nodes}",
                f"{rate_qps:.1f}",
                moved,
                f"{it.cut_off}",
                hit,
                backs[0],
                ttft,
            )
            print("| " + " | ".join([*cells, backs[1], over]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 nodes and little effort: does it run?")
    quick = parser.parse_args().quick
    print(f"machine load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores", flush=True)
    words = ("search.budget_s=3600",) if quick else ()
    fleets = FLEETS[:1] if quick else FLEETS
    found = capacities(fleets, 2 if quick else DRAWS, *words)
    rings(fleets)
    losses(found, LOSSES[:1] if quick else LOSSES)
    print(f"machine load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
