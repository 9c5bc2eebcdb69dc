"""An ASGI application around another: every answer names its replica, and one path describes it."""

import json
from collections.abc import Mapping
from typing import Any

from serve_apps.routing.asgi import App, Message, Receive, Scope, Send

DESCRIPTION_PATH = "/maxqps/replica"
REPLICA_ID = b"x-replica-id"


class StampedApp:
    """`app` with the header `x-replica-id` on every answer; GET `DESCRIPTION_PATH` answers `described`."""

    def __init__(self, app: App, replica_id: str, described: Mapping[str, Any]) -> None:
        self._app = app
        self._header = (REPLICA_ID, replica_id.encode())
        self._described = json.dumps({"replica_id": replica_id, **described}, default=str).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._header]
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["path"] == DESCRIPTION_PATH:
            await self._describe(stamped)
        else:
            await self._app(scope, receive, stamped)

    async def _describe(self, send: Send) -> None:
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._described})
