"""A key that nobody may read: how it is checked, sent and taken out of texts; knows no server, no file."""

import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

from conf.io.check import require

MOST_LETTERS = 4096
"""A longer key fits into no server's headers (nginx takes 8 kB of them, HAProxy 16; our choice)."""
FOREIGN_LETTERS, OWN_LETTERS = 4, 8
"""A shorter key is left in what others say, or in what we write: there it may be a word such as `sweep`."""
HIDDEN = "[api key]"


@dataclass(frozen=True, slots=True)
class Secret:
    """A key for a server, as travels in `Authorization: Bearer`; it shows itself nowhere.

    Raises ValueError, which does not quote it, unless it is a header value without spaces: visible ASCII.
    """

    value: str = field(repr=False)
    _written: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(bool(self.value), "the key is empty")
        visible = self.value.isascii() and self.value.isprintable() and " " not in self.value
        require(visible, "the key holds what no HTTP header carries: a line end, a space or a foreign letter")
        require(len(self.value) <= MOST_LETTERS, f"the key is longer than {MOST_LETTERS} letters")
        object.__setattr__(self, "_written", re.compile("".join(map(_forms, self.value))))

    @property
    def authorization(self) -> str:
        """The value of the header that carries it."""
        return f"Bearer {self.value}"

    def redact(self, text: str) -> str:
        """What somebody else said, without the key: as it is, or escaped for JSON, an address or a page.

        To be done before such a text is cut, or a part of the key would stay.
        """
        return self._written.sub(HIDDEN, text) if len(self.value) >= FOREIGN_LETTERS else text

    def cleaned(self, tree: Any) -> Any:
        """What we write or show, without the key in any of its texts."""
        if len(self.value) < OWN_LETTERS:
            return tree
        if isinstance(tree, str):
            return self.redact(tree)
        if isinstance(tree, dict):
            return {key: self.cleaned(value) for key, value in tree.items()}
        return [self.cleaned(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _forms(letter: str) -> str:
    """An expression for all ways to write one letter, each perhaps escaped more than once."""
    code = ord(letter)
    ways = [
        rf"(?i:%(?:25)*{code:02x})",
        rf"(?i:\\+u00{code:02x}|\\+x{code:02x})",
        rf"(?i:&#0*{code};|&#x0*{code:x};)",
    ]
    if not letter.isalnum():
        ways += [rf"\\+{re.escape(letter)}", re.escape(escape(letter))]
    return f"(?:{'|'.join([*ways, re.escape(letter)])})"  # the plain one last: it may begin another
