"""The page of a live view: one HTML file with its style, its script and the state as it stands."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

TEMPLATE = Path(__file__).with_name("page.html")
FIRST_STATE = "null /* the first state */"
"""Stands in the template where the state comes, inside an element that no browser runs."""
STYLE, SCRIPT = re.compile(r"<style>(.*?)</style>", re.S), re.compile(r"<script>(.*?)</script>", re.S)


def of(text: str) -> tuple[bytes, str]:
    """The page that begins with the state `text` (JSON of ASCII), and the policy to send with it."""
    template, policy = _template()
    # JSON needs these letters in strings only, where it may write them so; HTML then ends nothing early.
    safe = text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
    return template.replace(FIRST_STATE, safe).encode(), policy


@cache
def _template() -> tuple[str, str]:
    """The template, and the policy with the sums of its one style and its one script."""
    text = TEMPLATE.read_text()
    (style,), (script,) = STYLE.findall(text), SCRIPT.findall(text)
    rules = (
        *("default-src 'none'", f"style-src '{_sum(style)}'", f"script-src '{_sum(script)}'"),
        *("connect-src 'self'", "img-src data:", "base-uri 'none'", "form-action 'none'"),
        "frame-ancestors 'none'",
    )
    return text, "; ".join(rules)


def _sum(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
