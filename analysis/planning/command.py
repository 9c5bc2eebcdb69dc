"""`python -m analysis plan`: from the words of the command line to a plan; prints nothing."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from analysis.planning.evidence import NotPlannable, Source, evidence_of, expanded, read
from analysis.planning.plan import demand_rates, plan
from analysis.planning.serve_scaling import ServeSettings
from analysis.planning.verdict import NoPlan, Plan
from analysis.results.runs import RunError
from conf import ConfigError
from conf.compose import load_planning

GROUPS = ("demand", "plan")
IntoService = Callable[[Plan, Path | str], ServeSettings]
"""Takes the plan on a run's folder into service, and says how."""


def of_words(
    words: Sequence[str],
    predict: Callable[[Sequence[str]], Source],
    into_service: IntoService | None = None,
) -> Plan | NoPlan:
    """The plan that a command line asks for: folders of runs or words to predict, and words of a plan.

    `into_service` needs a run, whose requests' lives it looks at. Raises as `command` does, and ConfigError
    where both runs and words to predict are given.
    """
    asked = [word for word in words if _is_planning(word)]
    runs = [word for word in words if "=" not in word]
    machine = [word for word in words if "=" in word and not _is_planning(word)]
    if runs and machine:
        raise ConfigError(
            f"'{machine[0]}' is no word demand.* or plan.*, the only ones of a plan on a run; leave it out, "
            f"or leave {runs[0]} out to plan on a prediction"
        )
    if into_service and not runs:
        raise ConfigError("--serve-config rests on the requests of a run; name its folder")
    return command(runs, asked, lambda: predict(machine), into_service)


def _is_planning(word: str) -> bool:
    return word.partition("=")[0].partition(".")[0] in GROUPS


def command(
    sources: Sequence[Source | Path | str],
    words: Sequence[str],
    predict: Callable[[], Source] | None = None,
    into_service: IntoService | None = None,
) -> Plan | NoPlan:
    """The plan on the first of `sources`; the others show the effect of node counts.

    Without sources `predict` gives one; it may take minutes, so it is called after the words are checked.
    A source is a folder, a run, or a tree of sweep.json, study.json or a prediction, grids included. `words`
    are demand.* and plan.*. The `exit_code` is 0, or 6 where only a lower bound is known, and without a plan
    (`valid` false) that of the run, 4 of a void one. Raises RunError and ConfigError for wrong usage.
    """
    asked = load_planning(words)
    demand_rates(asked.demand)  # refuses a bad file of hours
    _refuse_twice([str(source) for source in sources if isinstance(source, Path | str)])
    if not sources and predict is None:
        raise RunError("plan needs a run folder, or words of what is to be predicted; see --help")
    if not sources and predict:
        sources = [predict()]
    try:
        folders = [source for source in sources if isinstance(source, Path | str)]
        opened = [read(source) if isinstance(source, Path | str) else [source] for source in sources]
        capacities = expanded([one for several in opened for one in several])
        made = plan(evidence_of(capacities[0]), asked.demand, asked.plan, capacities[1:])
        return replace(made, into_service=into_service(made, folders[0])) if into_service else made
    except NotPlannable as error:
        return NoPlan(exit_code=error.exit_code, reason=str(error))


def _refuse_twice(folders: Sequence[str]) -> None:
    resolved = [os.path.realpath(folder) for folder in folders]
    for folder, real in zip(folders, resolved, strict=True):
        if resolved.count(real) > 1:
            raise RunError(f"{folder} is given twice; a run counts once")
