"""The spec of external endpoints."""

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from conf.io.check import require

_API_PATH = re.compile(r"((?<!/)/v1(/models|/completions|/chat/completions)?)?/*$")
"""The end of a copied URL that we append ourselves. A host may be called v1."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of `engine=external`.

    A URL may have a path, such as that of a team at a gateway, and may end in /v1. URLs hold no secrets,
    since they are saved with the run. `api_key_env` names the environment variable with the key that is sent
    to every URL, in clear text if the URL is http://. If it is empty, no key is sent; otherwise the variable
    must exist when the key is read. `ca_file` is a PEM file with the only CA certificates that are trusted;
    if it is empty, the system's are. `list_models=false` is for servers without /v1/models;
    `model.served_name` names the model either way.

    Requests lack the optional fields in `omit`. `max_tokens_field` names the field with the length of the
    answer: some servers of chats refuse `max_tokens`. Without `stream_options` the server must send its usage
    unasked, because nothing else counts tokens. Without `ignore_eos` and `min_tokens` an answer that ends
    early fails.
    """

    urls: list[str] = field(default_factory=list)
    api_key_env: str = ""
    ca_file: str = ""
    list_models: bool = True
    omit: list[Literal["stream_options", "ignore_eos", "min_tokens", "temperature"]] = field(
        default_factory=list
    )
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)

    @property
    def bases(self) -> list[str]:
        """The URLs to which /v1/... and /metrics are appended."""
        return [_API_PATH.sub("", url) for url in self.urls]


def _check_url(url: str) -> None:
    """Raise ValueError unless `url` is a plain http(s) address; messages hide it, as it may hold a secret."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname)
        secret = "@" in parts.netloc or parts.query or parts.fragment
    except ValueError:
        fits, secret = False, ""
    require(not secret, "target.urls: no user, password, query or fragment; give a key by target.api_key_env")
    require(fits and url.isprintable() and " " not in url, "target.urls: must be http(s)://host:port")
    require(_has_valid_port(url), "target.urls: the port of a URL must be a number up to 65535")


def _has_valid_port(url: str) -> bool:
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False
