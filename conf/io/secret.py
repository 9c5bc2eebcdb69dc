"""Secrets: names that say a value is one, the key for a server, and how both are kept out of texts."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from conf.io.check import require
from conf.io.one_line import plain

SECRET_SETTING = re.compile(
    r"(TOKEN|KEY|PASSWORD|PASSWD|CREDENTIALS?)$|SECRET|(API|ACCESS)_?KEY", re.IGNORECASE
)
"""Names of settings that are refused because their values are secret, of variables (HF_TOKEN) and arguments
(api_key) alike; a count such as max_tokens is none."""
SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
"""Names of environment variables whose values may be secret: those values are never repeated."""
SECRET_TEXT = re.compile(r"\b(?:hf_|sk-)[\w-]{6,}|(?<=Bearer )\S+|(?<=://)[^/\s@]+(?=@)")
"""Text that looks like a key, a token or a URL's user and password."""
FEWEST_SECRET_LETTERS = 6
"""Shorter values of variables may be words, such as `false` (our choice)."""
MASK = "***"
MOST_LETTERS = 4096
"""A longer key fits into no server's headers (nginx takes 8 kB of them, HAProxy 16; our choice)."""
FOREIGN_LETTERS, OWN_LETTERS = 4, 8
"""Fewest letters of a key that is removed from foreign text, and from our own, where `sweep` is a word."""
HIDDEN = "[api key]"


def require_public(group: str, names: Iterable[str]) -> None:
    """Raise ValueError for a setting whose name says that it is secret: settings are saved with the run."""
    for name in names:
        message = f"{group}{name} would be saved with the run; set it in the environment of the nodes instead"
        require(SECRET_SETTING.search(name) is None, message)


def masked(text: str, environment: Mapping[str, str]) -> str:
    """The text without values of variables that may be secret, and without what looks like a key."""
    for name, value in environment.items():
        if SECRET_VARIABLE.search(name) and len(value) >= FEWEST_SECRET_LETTERS:
            text = text.replace(value, MASK)
    return SECRET_TEXT.sub(MASK, text)


@dataclass(frozen=True, slots=True)
class Secret:
    """A key for a server, sent as `Authorization: Bearer`; its repr does not show it.

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
        """Foreign text without the key, plain or escaped for JSON, a URL or HTML.

        Redact before cutting a text, or a part of the key would stay.
        """
        return self._written.sub(HIDDEN, text) if len(self.value) >= FOREIGN_LETTERS else text

    def cleaned(self, tree: Any) -> Any:
        """A tree that we write or show, without the key in any of its texts and keys."""
        return tree if len(self.value) < OWN_LETTERS else plain(tree, self.redact)


def _forms(letter: str) -> str:
    """A pattern of all ways to write one letter, each perhaps escaped more than once."""
    code = ord(letter)
    ways = [
        rf"(?i:%(?:25)*{code:02x})",
        rf"(?i:\\+u00{code:02x}|\\+x{code:02x})",
        rf"(?i:&#0*{code};|&#x0*{code:x};)",
    ]
    if not letter.isalnum():
        ways += [rf"\\+{re.escape(letter)}", re.escape(escape(letter))]
    return f"(?:{'|'.join([*ways, re.escape(letter)])})"  # the plain one last: it may begin another
