"""Whether an endpoint answers as a model server, and the key it wants; knows one URL at a time."""

import json
import os
import urllib.request
from http.client import HTTPException
from typing import Any

from conf import ConfigError

READY_TIMEOUT_S = 10.0


class TargetError(RuntimeError):
    """The service could not be deployed or reached; one line with the reason."""


def api_key(variable: str) -> str | None:
    """The key that the environment holds under this name; no name means no key."""
    if not variable:
        return None
    if variable not in os.environ:
        raise ConfigError(f"target.api_key_env={variable} names no environment variable; export it first")
    return os.environ[variable]


def models_of(url: str, key: str | None) -> Any:
    """The models a server says it serves. Raises TargetError when it does not answer as one."""
    request = urllib.request.Request(f"{url}/v1/models")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=READY_TIMEOUT_S) as response:
            return json.load(response)["data"]
    except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TargetError(f"{url}/v1/models does not answer as a model server: {error}") from error
