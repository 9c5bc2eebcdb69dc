"""The ASGI application of a simulated engine: OpenAI's paths, the engine's own times in the last event."""

import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from serve_apps.engine_model.engine.engine import QueueFull
from serve_apps.routing.asgi import Message, Receive, Scope, Send, lifespan
from serve_apps.simulated import openai_answers, openai_request
from serve_apps.simulated.openai_answers import ApiError, ApiRequest, OpenAiAnswer, ServedModel
from serve_apps.simulated.realtime_engine import EngineDead, RealtimeEngine, Stream
from serve_apps.simulated.revealed_answers import RevealedAnswer
from serve_apps.simulated.split_engines import RemotePrompts


class SimulatedApp:
    """The ASGI application of one replica; the server in front cancels a call whose client has left.

    `prompts` says where prompts are computed (by default in the engine itself); `pages` are further paths.
    """

    def __init__(
        self,
        engine: RealtimeEngine,
        served: ServedModel,
        replica_id: str,
        prompts: RemotePrompts | None = None,
        pages: Mapping[str, Callable[[], Awaitable[bytes]]] | None = None,
    ) -> None:
        self._engine = engine
        self._served = served
        self._replica_id = replica_id.encode()
        self._prompts = prompts or engine
        self._pages = pages or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            match (scope["method"], scope["path"]):
                case ("POST", "/v1/completions"):
                    request = openai_request.parse_completion(await _body(receive), self._served)
                    await self._generate(request, scope, send)
                case ("POST", "/v1/chat/completions"):
                    request = openai_request.parse_chat(await _body(receive), self._served)
                    await self._generate(request, scope, send)
                case ("GET", "/v1/models"):
                    await self._answer(send, openai_answers.models_body(self._served))
                case ("GET", "/metrics"):
                    body = openai_answers.metrics_body(self._engine.metrics(), self._served)
                    await self._answer(send, body, kind=openai_answers.METRICS_TYPE)
                case ("GET", "/health"):
                    alive = self._engine.failure is None
                    status = HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE
                    await self._answer(send, b"", status)
                case ("GET", path) if path in self._pages:
                    await self._answer(send, await self._pages[path]())
                case (method, path):
                    message = f"{method} {path} is not served"
                    raise ApiError(message, HTTPStatus.NOT_FOUND, "NotFoundError")
        except ApiError as error:
            await self._answer(send, error.body, error.status)

    async def _generate(self, request: ApiRequest, scope: Scope, send: Send) -> None:
        """Raises ApiError as long as nothing was sent; later errors go in band."""
        try:
            stream = await self._prompts.open(request)
        except QueueFull as error:
            status = HTTPStatus.SERVICE_UNAVAILABLE  # another replica may take it; vLLM names the type so
            raise ApiError(str(error), status, status.phrase) from error
        except ValueError as error:
            raise ApiError(str(error)) from error
        except EngineDead as error:
            raise openai_answers.server_error(str(error)) from error
        kind = OpenAiAnswer if request.reveal is None else RevealedAnswer
        answer = kind(request, _request_id(scope, stream), int(time.time()), self._served)
        try:
            await (self._stream if request.stream else self._whole)(stream, answer, send)
        finally:
            self._prompts.close(stream)

    async def _whole(self, stream: Stream, answer: OpenAiAnswer, send: Send) -> None:
        last = answer.request.output_tokens - 1
        try:
            if isinstance(answer, RevealedAnswer):
                while len(stream.emitted_s) <= last:  # with the steps: at its end all would take too long
                    answer.write(await stream.more_than(len(stream.emitted_s)))
            await stream.more_than(last)
        except EngineDead as error:
            raise openai_answers.server_error(str(error)) from error
        await self._answer(send, answer.whole(stream.steps))

    async def _stream(self, stream: Stream, answer: OpenAiAnswer, send: Send) -> None:
        scale = self._engine.time_scale
        clock = [] if scale == 1 else [(openai_answers.TIME_SCALE, b"%.17g" % scale)]
        await send(self._start(HTTPStatus.OK, openai_answers.SSE_TYPE, *clock))
        sent = 0
        try:
            while sent < answer.request.output_tokens:
                tokens = await stream.more_than(sent)
                await send(_part(answer.tokens(sent, tokens)))
                sent = tokens
        except EngineDead as error:
            await send(_part(openai_answers.error_events(openai_answers.server_error(str(error)))))
        else:
            await send(_part(answer.end(stream.steps)))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(
        self,
        send: Send,
        body: bytes,
        status: HTTPStatus = HTTPStatus.OK,
        kind: bytes = openai_answers.JSON_TYPE,
    ) -> None:
        await send(self._start(status, kind, (b"content-length", str(len(body)).encode())))
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def _start(self, status: HTTPStatus, kind: bytes, *more: tuple[bytes, bytes]) -> Message:
        headers = [(b"content-type", kind), (b"x-replica-id", self._replica_id), *more]
        return {"type": "http.response.start", "status": status.value, "headers": headers}


async def _body(receive: Receive) -> bytes:
    """The body of a request, read to its end, because some clients listen only then.

    Raises ApiError for one that is too long, of which nothing is kept.
    """
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise openai_answers.invalid("the client left before its request was complete")
        parts.append(message.get("body", b""))
        size_bytes += len(parts[-1])
        if size_bytes > openai_request.MOST_BODY_BYTES:
            parts.clear()
        if not message.get("more_body", False):
            break
    if size_bytes > (most := openai_request.MOST_BODY_BYTES):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        reason = f"The body is longer than {most} bytes; send fewer or smaller images, or a shorter prompt."
        raise ApiError(reason, status, status.phrase)
    return b"".join(parts)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _request_id(scope: Scope, stream: Stream) -> str:
    """The caller's x-request-id (Serve gives every request one), as vLLM does."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return str(value.decode("latin-1"))
    return str(stream.state.request_id)
