"""Types of ASGI applications, and their lifespan protocol."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def nothing() -> None:
    """The shutdown of an application that holds nothing."""


async def lifespan(receive: Receive, send: Send, shutdown: Callable[[], Awaitable[None]] = nothing) -> None:
    """Confirm the start and, after `shutdown`, the end of an application."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": f"{message['type']}.complete"})
    await shutdown()
    await send({"type": f"{message['type']}.complete"})
