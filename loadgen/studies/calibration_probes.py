"""The calibration recipe: probes of one service from which `python -m analysis calibrate` fits the engine
model.

Each part is an ordinary probe; one that was cut short is measured anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from analysis.results.runs import RECORDED
from analysis.results.studies import Parts
from analysis.results.verdicts import StudyVerdict
from conf import ConfigError, Experiment, load
from conf.specs.experiment import Slo, Workload
from loadgen.drive import programs
from loadgen.run.jobs import Job, OfferLoad
from loadgen.studies.study import Study, seed_of

KIND = "recipe"
WAVES, LEAST_REQUESTS = 10, 30
"""Requests per concurrent one of a closed loop (docs/predict.md), and the fewest (our choice)."""
CHECKED = (0.3, 0.5, 0.7)
"""Shares of a node's expected rate: below the knee, where a run says most about the constants."""
CHECK_S = 300.0
CHECK = "r4_check"
LOOSE = Slo("recipe", ttft_p90_ms=60_000, tpot_p90_ms=1_000)
"""Bounds that no probe of the recipe misses: it measures and judges nothing."""


CLOSED = {"r1_prefill": (1, 2, 4), "r2_decode": (1, 4, 16, 64, 256), "r3_context": (1, 4, 16, 64, 256)}
"""Concurrencies of the closed loops of each workload."""


class CalibrationStudy(Study):
    """The probes of one service; `guess_qps` (per node) stands in for `rate_qps` if the words give none.

    Raises ConfigError if neither is known.
    """

    kind = verb = KIND
    anew = True
    ends = RECORDED

    def __init__(self, experiment: Experiment, guess_qps: float | None = None) -> None:
        expected = experiment.rate_qps or guess_qps
        if not expected:
            raise ConfigError(
                "recipe needs rate_qps=... (QPS that a node may serve): three shares of it are checked"
            )
        rate_qps, duration_s = float(f"{expected:.3g}"), experiment.duration_s or CHECK_S
        experiment = replace(experiment, rate_qps=rate_qps, duration_s=duration_s)
        super().__init__(experiment, _probes(experiment, rate_qps))

    def job(self, name: str, experiment: Experiment) -> Job:
        return OfferLoad(experiment)

    def conclude(self, verdict: StudyVerdict, parts: Parts) -> StudyVerdict:
        return replace(verdict, evidence=f"{len(parts)} probes", remedy="")


def check_experiment(experiment: Experiment) -> Experiment:
    """The experiment whose traffic decides the guessed rate."""
    return replace(experiment, workload=_workload(CHECK, experiment))


def _probes(study: Experiment, rate_qps: float) -> dict[str, Experiment]:
    """The experiment of every part by name: closed loops, and shares of the expected rate."""
    probes = {}
    for name, counts in CLOSED.items():
        workload, short = _workload(name, study), name.partition("_")[0]
        for count in counts:
            probes[f"{short}-c{count}"] = replace(
                study,
                workload=workload,
                fleet=replace(study.fleet, actors=min(study.fleet.actors, count)),
                rate_qps=None,
                duration_s=None,
                concurrency=count,
                requests=max(WAVES * count, LEAST_REQUESTS),
            )
    for share in CHECKED:
        probes[f"r4-{100 * share:.0f}pct"] = replace(check_experiment(study), rate_qps=share * rate_qps)
    return {name: replace(probe, slo=LOOSE, seed=seed_of(study.seed, name)) for name, probe in probes.items()}


def _workload(name: str, experiment: Experiment) -> Workload:
    asks = experiment.workload
    return replace(load([f"workload={name}"]).workload, prompt=asks.prompt, tokenizer=asks.tokenizer)


def probe_line(experiment: Experiment) -> str:
    """One part as a line of the plan."""
    tokens = f"{experiment.workload.input_tokens.mean}/{experiment.workload.output_tokens.mean}"
    offered = f"{experiment.requests} requests, {experiment.concurrency} in flight"
    if not experiment.concurrency:
        offered = f"{experiment.rate_qps:.3g} QPS per node for {experiment.duration_s:.0f} s"
    return f"# {experiment.run}: {tokens} tokens, prefix_hit {experiment.workload.prefix_hit:g}, {offered}"


def total_line(parts: Sequence[Experiment], closed_s: Callable[[Experiment], float | None]) -> str:
    """A line with the load time of all parts; `closed_s` is the engine model's time of a closed loop."""
    lasts = [programs.load_seconds(part) or closed_s(part) for part in parts]
    unknown, load_s = lasts.count(None), sum(filter(None, lasts))
    besides = f", besides {unknown} closed loops that last as long as the service takes" if unknown else ""
    return (
        f"# in total {load_s:.0f} s ({load_s / 60:.0f} min) of load{besides}; "
        "deployment, warm-up and drain of each part come on top"
    )
