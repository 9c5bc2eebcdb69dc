"""Checks of names and paths in commands, units and manifests, so that none can inject commands.

Every function returns its argument, or raises ValueError with the flag or key that it came from.
"""

import ipaddress
import re
from contextlib import suppress

LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""RFC 1123, for DNS and Kubernetes."""
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")
_FORMS = {
    "path": (
        re.compile(r"/[A-Za-z0-9._+@-]+(/[A-Za-z0-9._+@-]+)*/?"),
        "an absolute path of letters, digits and ._+@-",
    ),
    "user": (re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,31}"), "a user of letters, digits and ._-"),
    "cluster": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"), "at most 63 letters, digits and ._-"),
    "resource": (re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,62}"), "at most 63 letters, digits and _.:/-"),
    "variable": (re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), "letters, digits and _"),
    "label": (re.compile(LABEL), "at most 63 of a-z, 0-9 and -"),
    "object": (_SUBDOMAIN, "at most 253 of a-z, 0-9, - and ."),
    "image": (
        re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?"),
        "REPO:TAG@sha256:DIGEST",
    ),
}


def checked(form: str, text: str, what: str) -> str:
    """The text, if it is a name of this `form`; `what` is its flag or key."""
    pattern, like = _FORMS[form]
    if not pattern.fullmatch(text) or ".." in text:
        raise ValueError(f"{what}={text!r} is not allowed there; use {like}")
    return text


def address(text: str, what: str) -> str:
    """The IP address of a host, without a zone, which may be any text.

    A host name is refused: on its own host it often means 127.0.0.1 or another network (/etc/hosts).
    """
    with suppress(ValueError):
        ipaddress.ip_address(text)
        if "%" not in text:
            return text
    raise ValueError(
        f"{what}={text!r} is no IP address; use the one under which the other hosts reach this host, "
        "as `hostname -I` prints it there"
    )


def setting(name: str, value: str) -> None:
    """Raise ValueError for an environment variable that no file of settings can hold."""
    checked("variable", name, "the environment variable")
    if not value.isprintable():
        raise ValueError(f"{name}={value!r} has a control character; leave it out")


def authority(text: str) -> str:
    """A host as written before a port: an IPv6 address in brackets."""
    return f"[{text}]" if ":" in text else text
