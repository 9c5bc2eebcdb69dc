"""The search on a virtual clock: the answer of an engine model, which is handed in as a service."""

from analysis.summary import Tree
from conf import Experiment
from loadgen import conclusion
from loadgen.driver import Driver
from loadgen.plan import Plan
from loadgen.progress import Emit
from loadgen.search import Start
from loadgen.sweep import sweep
from loadgen.virtual_target import Service, VirtualTarget


def predict(experiment: Experiment, service: Service, start: Start, emit: Emit) -> Tree:
    """The conclusion of a search over `service`: the tree of sweep.json with `clock` = `virtual`."""
    plan = Plan(
        search=experiment.search,
        slo=experiment.slo,
        workload=experiment.workload,
        nodes=experiment.cluster.nodes,
        seed=experiment.seed,
        start=start,
        streams=experiment.streams,
    )
    driver = Driver(VirtualTarget(service), plan, emit)
    return conclusion.of_sweep(experiment, driver, sweep(driver), "virtual")
