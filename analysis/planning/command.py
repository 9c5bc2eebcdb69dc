"""What `python -m analysis plan` does between its words and its tree; prints nothing."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.planning import evidence
from analysis.planning.evidence import NotPlannable, Source
from analysis.planning.plan import DemandRates, plan
from analysis.planning.plan_tree import Tree, refused, tree
from analysis.results.runs import RunError
from conf.load import load_planning

GROUPS = ("demand", "plan")


def is_planning(word: str) -> bool:
    """True of a word of a plan (demand.*, plan.*); others name runs, or say what is to be predicted."""
    return word.partition("=")[0].partition(".")[0] in GROUPS


def command(
    sources: Sequence[Source | Path | str], words: Sequence[str], predict: Callable[[], Tree] | None = None
) -> Tree:
    """The plan on the first of `sources`; the others say what node counts and lengths do.

    Without any, `predict` stands in; it may take minutes, so it is asked once the words are found right.
    A source is a folder, a run, or a tree of sweep.json, study.json or a prediction, grids included. `words`
    are demand.* and plan.*. The tree's `exit_code` is 0, or 6 where only a lower bound is known, and without
    a plan (`valid` false) that of the run, 4 of a void one. Raises RunError and ConfigError for wrong usage.
    """
    asked = load_planning(words)
    DemandRates.of(asked.demand)  # refuses a bad file of hours
    _refuse_twice([str(source) for source in sources if isinstance(source, Path | str)])
    if not sources and predict is None:
        raise RunError("plan needs a run folder, or words of what is to be predicted; see --help")
    if not sources and predict:
        sources = [predict()]
    try:
        found = evidence.expanded([one for source in sources for one in _opened(source)])
        return tree(plan(found[0], asked.demand, asked.plan, found[1:]))
    except NotPlannable as error:
        return refused(error)


def _refuse_twice(folders: Sequence[str]) -> None:
    resolved = [os.path.realpath(folder) for folder in folders]
    for folder, real in zip(folders, resolved, strict=True):
        if resolved.count(real) > 1:
            raise RunError(f"{folder} is given twice; a run counts once")


def _opened(source: Source | Path | str) -> Sequence[Source]:
    return evidence.read(source) if isinstance(source, Path | str) else [source]
