"""The spec of external endpoints."""

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from conf.io.check import require


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Endpoints of `engine=external`.

    `api_key_env` names the environment variable with the key that is sent to every URL, in clear text if the
    URL is http://. If it is empty, no key is sent; otherwise the variable must exist when the key is read.
    URLs hold no secrets, since they are saved with the run.
    """

    urls: list[str] = field(default_factory=list)
    api_key_env: str = ""

    def __post_init__(self) -> None:
        for url in self.urls:
            _check_url(url)


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
