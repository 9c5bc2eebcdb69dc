"""What a command would do, in words, before anything is started; knows no engine and starts nothing."""

from pathlib import Path

from conf import ConfigError, Experiment
from conf.load import dump
from loadgen.driver import WARMUP_QPS


def text(experiment: Experiment, load_s: float | None, guess_qps: float | None) -> str:
    """The resolved configuration and the plan.

    `load_s` is the time under load: 0 on a virtual clock, None where the service decides (a closed loop);
    `guess_qps` is what a node may serve, None if nobody knows. Raises ConfigError if the run folder exists.
    """
    if experiment.run and (Path(experiment.out) / experiment.run).exists():
        raise ConfigError(f"run folder {experiment.out}/{experiment.run} exists; choose another run=NAME")
    lines = [
        dump(experiment).rstrip(),
        f"# {experiment.replicas} replica(s) on {experiment.cluster.nodes} node(s)",
    ]
    if load_s == 0:
        return "\n".join([*lines, "# no load: a virtual clock"])
    warm = experiment.fleet.warmup_requests
    lines.append(f"# {experiment.fleet.actors} load actor(s), {warm} warm-up requests")
    return "\n".join([*lines, *_load(experiment, load_s, guess_qps)])


def _load(experiment: Experiment, load_s: float | None, guess_qps: float | None) -> list[str]:
    """How long the load lasts and how much it is, as far as that can be known."""
    if load_s is None:
        count, held = experiment.closed_requests, experiment.concurrency
        return [f"# closed loop: {count} requests, {held} in flight; as long as that takes"]
    warm_s = experiment.fleet.warmup_requests / WARMUP_QPS
    longest_s = load_s + warm_s + experiment.search.settle_s + experiment.fleet.drain_s
    lines = [
        f"# {load_s:.0f} s of load; at most about {longest_s:.0f} s with warm-up and drain, after deployment"
    ]
    rate_qps = experiment.rate_qps or guess_qps
    varies = experiment.profile_qps or experiment.workload.arrivals.kind == "trace"
    if rate_qps and not varies:
        planned = rate_qps * experiment.cluster.nodes * load_s
        if_so = "" if experiment.rate_qps else f", if a node serves about {rate_qps:.1f} QPS"
        lines.append(f"# some {planned:.0f} requests{if_so}")
    return lines
