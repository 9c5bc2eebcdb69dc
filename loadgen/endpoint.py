"""Whether an endpoint answers as a model server, and the key it wants; knows one URL at a time."""

import json
import os
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, HTTPMessage
from typing import IO, Any, NoReturn

from conf import ConfigError

READY_TIMEOUT_S = 10.0


class TargetError(RuntimeError):
    """The service could not be deployed or reached; one line with the reason.

    `last_words` are lines of the processes that failed, for the run folder.
    """

    def __init__(self, message: str, last_words: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.last_words = tuple(last_words)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to be sent elsewhere: the load would not follow, and the key belongs to nobody else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> NoReturn:
        raise TargetError(f"{req.full_url} redirects to {newurl}: name the server that answers itself")


def api_key(variable: str) -> str | None:
    """The key that the environment holds under this name; no name means no key."""
    if not variable:
        return None
    if variable not in os.environ:
        raise ConfigError(f"target.api_key_env={variable} names no environment variable; export it first")
    return os.environ[variable]


def models_of(url: str, key: str | None) -> Any:
    """The models a server says it serves. Raises TargetError when it does not answer as one.

    It is asked the way the load goes: without a proxy and without following a redirect.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
    request = urllib.request.Request(f"{url}/v1/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with opener.open(request, timeout=READY_TIMEOUT_S) as response:
            return json.load(response)["data"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TargetError(f"{url}/v1/models does not answer as a model server: {error}") from error
