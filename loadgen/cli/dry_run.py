"""The plan of a command as text; starts nothing and knows no engine."""

from collections.abc import Sequence

from conf import Experiment
from conf.load import dump
from loadgen.cli import machine_check, prompt_preview
from loadgen.drive.cache_warmup import LONGEST_S, PIECE_S, pace_s
from loadgen.drive.service_warmup import WARMUP_QPS
from loadgen.drive.steady_state import STEADY_E2E
from loadgen.search.budget import longest_search
from loadgen.traffic.prefix_sharing import gap_s


def text(
    experiment: Experiment,
    load_s: float | None,
    guess_qps: float | None,
    services: int | None = None,
    runs: int | None = None,
    kernels: Sequence[str] = (),
) -> str:
    """The resolved configuration and the plan.

    - `load_s`: time under load; 0 on a virtual clock, None if the service decides (a closed loop).
    - `guess_qps`: guessed QPS of a node, or None.
    - `services`: services deployed one after the other (default: one for each sweep); `runs`: runs that load
      them (default: one each).
    - `kernels`: lines about kernels of unknown speed.
    """
    chats = experiment.workload.conversations
    lines = [
        dump(experiment).rstrip(),
        *(prompt_preview.lines(chats) if chats else []),
        *(f"# {line}" for line in kernels),
        f"# {experiment.replicas} replica(s) on {experiment.cluster.nodes} node(s)",
    ]
    if load_s == 0:
        return "\n".join([*lines, "# no load: a virtual clock"])
    warm = experiment.fleet.warmup_requests
    actors, joined = experiment.fleet.actors, experiment.cluster.session == "address"
    shared = "" if joined else machine_check.shared(actors, machine_check.cores())
    lines.append(f"# {actors} load actor(s){shared}, {warm} warm-up requests")
    services = services or experiment.search.parts
    return "\n".join([*lines, *_load(experiment, load_s, guess_qps, services, runs or services)])


def _load(
    experiment: Experiment, load_s: float | None, guess_qps: float | None, services: int, runs: int
) -> list[str]:
    if load_s is None:
        count, held = experiment.closed_requests, experiment.concurrency
        return [f"# closed loop: {count} requests, {held} in flight; as long as that takes"]
    warm_s = experiment.fleet.warmup_requests / WARMUP_QPS
    parts = experiment.search.parts
    longest_s = load_s + runs * (warm_s + experiment.search.settle_s + experiment.fleet.drain_s)
    longest = f"at most about {longest_s:.0f} s with warm-up and drain"
    deployed = "after deployment" if services == 1 else f"and {services} deployments"
    lines = [f"# {load_s:.0f} s of load; {longest}, {deployed}"]
    if experiment.time_scale != 1:
        real_s, scale = longest_s / experiment.time_scale, experiment.time_scale
        lines.append(
            f"# these are the engine's seconds; at engine.time_scale={scale:g} at most {real_s:.0f} real ones"
        )
    lines += _long_answers(experiment)
    if parts > 1:
        each = f"{load_s / parts:.0f} s, each of a service deployed anew, with its own seed"
        lines = [f"# {parts} sweeps of {each}", *lines]
    rate_qps = experiment.rate_qps or guess_qps
    varies = experiment.profile_qps or experiment.workload.arrivals.kind == "trace"
    if rate_qps and not varies:
        planned = rate_qps * experiment.cluster.nodes * load_s
        without = " without hits of its sessions" if experiment.workload.has_sessions else ""
        if_so = "" if experiment.rate_qps else f", if a node serves about {rate_qps:.1f} QPS{without}"
        lines.append(f"# about {planned:.0f} requests{if_so}")
    return [*lines, *_cache_warmup(experiment, guess_qps)]


def _long_answers(experiment: Experiment) -> list[str]:
    tokens, search = experiment.workload.output_tokens.mean, longest_search(experiment)
    may = f"# answers of {tokens:g} tokens may last {experiment.answer_s:.0f} s within the bounds"
    if experiment.rate_qps or experiment.profile_qps:
        return [f"{may}: up to {STEADY_E2E * experiment.answer_s:.0f} s of load first fill the service"]
    if experiment.workload.arrivals.kind == "trace" or search.window_s == experiment.search.window_s:
        return []
    return [f"{may}: windows of {search.window_s:.0f} s, and a budget of {search.budget_s:.0f} s for them"]


def _cache_warmup(experiment: Experiment, guess_qps: float | None) -> list[str]:
    if not experiment.workload.wants_hits:
        return []
    when, ramp = "before the first window", ""
    if experiment.workload.has_sessions:
        ramp = f"{PIECE_S:.0f} s at each rate on the way there and "
    if experiment.workload.conversations:
        when = "before each window above all rates so far"
        if guess_qps:
            gap = gap_s(experiment.workload, 1.0, experiment.cluster.nodes) or 0.0
            ramp = f"{pace_s(guess_qps, gap):.0f} s for each QPS per node on the way there and "
    return [
        f"# cache warm-up comes on top, {when}: {ramp}at most about {LONGEST_S:.0f} s at its rate; "
        "no budget is spent on it"
    ]
