"""The ASGI application of a simulated engine: OpenAI's paths, the engine's own times in the last event."""

import time
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from serve_apps.engine_model.engine.engine import QueueFull
from serve_apps.routing.asgi import lifespan
from serve_apps.simulated import openai_answers, openai_request
from serve_apps.simulated.openai_answers import ApiError, ApiRequest, OpenAiAnswer, ServedModel
from serve_apps.simulated.realtime_engine import EngineDead, RealtimeEngine, Stream
from serve_apps.simulated.revealed_answers import RevealedAnswer
from serve_apps.simulated.split_engines import RemotePrompts


class SimulatedApp:
    """The ASGI application of one engine; the server in front cancels a call whose client has left.

    `prompts` says where prompts are computed (by default in the engine itself).
    """

    def __init__(
        self, engine: RealtimeEngine, served: ServedModel, prompts: RemotePrompts | None = None
    ) -> None:
        self._engine = engine
        self._served = served
        self._prompts = prompts or engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        try:
            match (scope.get("method"), scope["path"]):  # a web socket has no method
                case ("POST", "/v1/completions" | "/v1/chat/completions" as path):
                    body = await _body(scope, receive)
                    is_chat = path.startswith("/v1/chat")
                    parse = openai_request.parse_chat if is_chat else openai_request.parse_completion
                    await self._generate(parse(body, self._served), scope, receive, send)
                    return
                case ("GET", "/v1/models"):
                    answer = _json(openai_answers.models_body(self._served))
                case ("GET", "/metrics"):
                    metrics = openai_answers.metrics_body(self._engine.metrics(), self._served)
                    answer = Response(metrics, media_type=openai_answers.METRICS_TYPE)
                case ("GET", "/health"):
                    alive = self._engine.failure is None
                    answer = _json(b"", HTTPStatus.OK if alive else HTTPStatus.SERVICE_UNAVAILABLE)
                case (method, path):
                    message = f"{method} {path} is not served"
                    raise ApiError(message, HTTPStatus.NOT_FOUND, "NotFoundError")
        except ApiError as error:
            answer = _json(error.body, error.status)
        await answer(scope, receive, send)

    async def _generate(self, request: ApiRequest, scope: Scope, receive: Receive, send: Send) -> None:
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
            if request.stream:
                await self._stream(stream, answer, send)
            else:
                await _json(await self._whole(stream, answer))(scope, receive, send)
        finally:
            self._prompts.close(stream)

    async def _whole(self, stream: Stream, answer: OpenAiAnswer) -> bytes:
        last = answer.request.output_tokens - 1
        try:
            if isinstance(answer, RevealedAnswer):
                while len(stream.emitted_s) <= last:  # with the steps: at its end all would take too long
                    answer.write(await stream.more_than(len(stream.emitted_s)))
            await stream.more_than(last)
        except EngineDead as error:
            raise openai_answers.server_error(str(error)) from error
        return answer.whole(stream.steps)

    async def _stream(self, stream: Stream, answer: OpenAiAnswer, send: Send) -> None:
        scale = self._engine.time_scale
        clock = [] if scale == 1 else [(openai_answers.TIME_SCALE, b"%.17g" % scale)]
        headers = [(b"content-type", openai_answers.SSE_TYPE), *clock]
        await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": headers})
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


def _json(body: bytes, status: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(body, status, media_type=openai_answers.JSON_TYPE)


async def _body(scope: Scope, receive: Receive) -> bytes:
    """The body of a request, read to its end, because some clients listen only then.

    Raises ApiError for one that is too long, of which nothing is kept.
    """
    parts: list[bytes] = []
    size_bytes = 0
    try:
        async for part in Request(scope, receive).stream():
            parts.append(part)
            size_bytes += len(part)
            if size_bytes > openai_request.MOST_BODY_BYTES:
                parts.clear()
    except ClientDisconnect as error:
        raise openai_answers.invalid("the client left before its request was complete") from error
    if size_bytes > (most := openai_request.MOST_BODY_BYTES):
        status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        reason = f"The body is longer than {most} bytes; send fewer or smaller images, or a shorter prompt."
        raise ApiError(reason, status, status.phrase)
    return b"".join(parts)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


def _request_id(scope: Scope, stream: Stream) -> str:
    """The caller's x-request-id (Serve gives every request one), as vLLM does."""
    return Headers(scope=scope).get("x-request-id", str(stream.state.request_id))
