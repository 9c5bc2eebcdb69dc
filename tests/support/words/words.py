"""Words of a command line that tests give again with another value: a command refuses a key given twice."""

from collections.abc import Iterable


def over(words: Iterable[str], *more: str) -> list[str]:
    """The words without those that `more` gives anew, and then `more`."""
    given = {word.partition("=")[0] for word in more}
    return [*(word for word in words if word.partition("=")[0] not in given), *more]
