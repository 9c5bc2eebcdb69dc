"""Seconds of load that a search may take, from the configuration alone; knows no run."""

from dataclasses import replace

from conf import Experiment
from conf.specs.experiment import Search
from loadgen.search.pacing import paced


def swept_s(experiment: Experiment) -> float:
    """Seconds of load of all sweeps, each with its confirmation run."""
    search = experiment.search
    return search.parts * (_swept_s(experiment) + search.confirm_s)


def compared_s(experiment: Experiment) -> float:
    """Seconds of load of A's sweep with its confirmation run and of B's, which is as long if B is as fast."""
    return 2 * _swept_s(experiment) + experiment.search.confirm_s


def _swept_s(experiment: Experiment) -> float:
    """Seconds of one sweep without its confirmation run; the least number of windows is granted beyond the
    budget."""
    longest = longest_search(experiment)
    return max(longest.budget_s, longest.least_s)


def longest_search(experiment: Experiment) -> Search:
    """Search of one deployment whose answers last as long as the bounds allow."""
    search, answer_s = experiment.search, experiment.answer_s
    alone = replace(search, deployments=1, budget_s=search.budget_s / search.deployments)
    return paced(alone, answer_s, answer_s)
