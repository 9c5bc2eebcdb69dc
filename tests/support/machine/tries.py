"""Repeats a real run that a busy machine made void: a test of it ends with a valid run, or it fails."""

from collections.abc import Callable, Collection
from typing import Any

from analysis.results import summary
from tests.support.commands import WORDS
from tests.support.machine.patience import BUSY

TRIES = 3
"""Runs until one is valid (our choice): the machine may be busy in two, a fault shows in each."""
BRACKETING = WORDS["bracketing"]
"""Words of a search that a few windows end."""


def bracketed(tree: dict[str, Any]) -> bool:
    """True if the search ended with both ends of its interval."""
    return bool(tree["exit_code"] == summary.EXIT_OK)


def valid(
    run: Callable[[int], dict[str, Any]],
    also: Collection[str] = (),
    enough: Callable[[dict[str, Any]], bool] = lambda tree: True,
) -> dict[str, Any]:
    """The first valid verdict with `enough` in it, of three runs at most; `run(number)` returns a verdict.

    Fails if all three are void, and at once if a window is void for a reason that is neither a busy machine's
    nor among `also`.
    """
    ends: list[str] = []
    for number in range(TRIES):
        tree = run(number)
        refuse_other_reasons(tree, also)
        if tree["exit_code"] != summary.EXIT_VOID and enough(tree):
            return tree
        ends.append(f"exit {tree['exit_code']}: {tree['reason']}")
    raise AssertionError(f"no valid run in {TRIES} tries: {ends}")


def refuse_other_reasons(tree: dict[str, Any], also: Collection[str] = ()) -> None:
    """Fail if a window, or a run that is void as a whole, is void but for a busy machine's sake."""
    reasons = {window["void_reason"] for window in tree["windows"] if not window["valid"]}
    if tree["exit_code"] == summary.EXIT_VOID:
        reasons.add(tree["reason"].partition(":")[0])
    assert reasons <= {*BUSY, *also}, f"void for {reasons}: {tree['reason']}"
