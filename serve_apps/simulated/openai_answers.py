"""vLLM's OpenAI-compatible answers as pure functions: bytes out.

Shapes, key order, default values and error bodies are those of vLLM's completion and chat servers;
`openai_request` reads the requests. Every answered token is the word " token", so that an answer sent back as
a prompt counts the same again; `revealed_answers` show token ids beside it. The simulated engine always
answers `max_tokens` tokens. It reports the prompt tokens that it found in its prefix cache, as vLLM does with
--enable-prompt-tokens-details, and the time in its queue, as vLLM does with --enable-per-request-metrics.
"""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

TOKEN_TEXT = " token"
DONE = b"data: [DONE]\n\n"
JSON_TYPE = "application/json"
SSE_TYPE = b"text/event-stream; charset=utf-8"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TIME_SCALE = b"x-time-scale"
"""Header of an engine whose clock is not the real one: its speed."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, as /v1/models reports it, and bounds of a request; `created_s` is in Unix seconds.

    `block_size` is the tokens of a block of the prefix cache; 0 without one. `image_token_px` is the side of
    the square of an image that is one token; 0 of a model that sees none. `defect` is the share of positions
    (0 to 1) that are answered wrong.
    """

    name: str
    max_model_len: int
    vocab: int
    created_s: int = 0
    block_size: int = 0
    image_token_px: int = 0
    defect: float = 0.0


@dataclass(frozen=True, slots=True)
class Image:
    """An image of a prompt, and its prompt tokens; `name` is the same for the same bytes."""

    name: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Reveal:
    """The part of its tokens that an answer shows: ids, and with `logprobs` as many alternatives.

    Its text then follows from `prompt`, of token ids or words.
    """

    prompt: Sequence[Hashable]
    logprobs: int | None = None
    token_ids: bool = False


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request the engine can serve: of a prompt it needs the length, and `hashes` of its full blocks.

    It needs the prompt itself only for an answer that shows its tokens (`reveal`).
    """

    chat: bool
    input_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool = False
    usage_in_each: bool = False
    hashes: tuple[int, ...] = ()
    images: tuple[Image, ...] = ()
    reveal: Reveal | None = None


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """Steps that gave a request a token, and how many of them came later than half their duration.

    `cached_tokens` of its prompt were in the prefix cache when it was admitted. `first_token_us` and
    `last_token_us` are microseconds of the engine's own time since the request arrived there. It was in the
    scheduler's queue for `queue_s`, None where one engine alone does not know.
    """

    steps: int
    late_steps: int
    cached_tokens: int = 0
    first_token_us: int = 0
    last_token_us: int = 0
    queue_s: float | None = None


class ApiError(Exception):
    """A request is refused; `body` is what vLLM answers with HTTP status `status`."""

    def __init__(
        self,
        message: str,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        error = {"message": message, "type": kind, "param": param, "code": status.value}
        self.body = _json({"error": error})


def invalid(message: str, param: str | None = None) -> ApiError:
    """The refusal of a malformed body (vLLM names it after the HTTP phrase)."""
    return ApiError(message, kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def server_error(message: str) -> ApiError:
    """The engine cannot answer; the fault is not the request's."""
    return ApiError(message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")


class OpenAiAnswer:
    """The bytes of one answer; the parts that its tokens have in common are formatted once."""

    def __init__(self, request: ApiRequest, request_id: str, created_s: int, served: ServedModel) -> None:
        self.request = request
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{request_id}",
            "object": "chat.completion.chunk" if request.chat else "text_completion",
            "created": created_s,
            "model": served.name,
        }
        self._token = self._chunk(None)
        self._last = self._chunk("length")

    def tokens(self, sent: int, count: int) -> bytes:
        """The SSE events of tokens `sent` to `count` - 1 (from 0); the first brings a chat's role along."""
        role = self._role() if self.request.chat and not sent else b""
        if self.request.usage_in_each:
            last = self.request.output_tokens
            ends = (("length" if index == last else None, index) for index in range(sent + 1, count + 1))
            return role + b"".join(self._chunk(end, self._usage(index)) for end, index in ends)
        if count < self.request.output_tokens:
            return role + self._token * (count - sent)
        return role + self._token * (count - sent - 1) + self._last

    def end(self, steps: EngineSteps) -> bytes:
        """The closing events: usage, if requested, and [DONE]."""
        if not self.request.include_usage:
            return DONE
        closing = {"choices": [], "usage": self._final_usage(steps)}
        return _event(self._head | closing | _engine_fields(steps)) + DONE

    def whole(self, steps: EngineSteps) -> bytes:
        """The body of an answer that is not streamed."""
        kind = "chat.completion" if self.request.chat else "text_completion"
        body = {"object": kind, "choices": [self._choice()], "usage": self._final_usage(steps)}
        return _json(self._head | body | _engine_fields(steps))

    def _choice(self) -> dict[str, Any]:
        text = TOKEN_TEXT * self.request.output_tokens
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
        return choice | {"logprobs": None, "finish_reason": "length", "stop_reason": None}

    def _chunk(self, finish_reason: str | None, usage: dict[str, Any] | None = None, **shown: Any) -> bytes:
        """The event of one token, with what the answer shows of it."""
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": TOKEN_TEXT}} if self.request.chat else {"text": TOKEN_TEXT}
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason or not self.request.chat:
            choice["stop_reason"] = None
        return _event(self._head | {"choices": [choice | shown]} | ({"usage": usage} if usage else {}))

    def _role(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        usage = {"usage": self._usage(0)} if self.request.usage_in_each else {}
        return _event(self._head | {"choices": [choice]} | usage)

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.request.input_tokens,
            "total_tokens": self.request.input_tokens + output_tokens,
            "completion_tokens": output_tokens,
        }

    def _final_usage(self, steps: EngineSteps) -> dict[str, Any]:
        """The usage at the end, with the details that vLLM reports only there."""
        details = {"prompt_tokens_details": {"cached_tokens": steps.cached_tokens}}
        return self._usage(self.request.output_tokens) | details


def error_events(error: ApiError) -> bytes:
    """The closing events of a stream that failed: the error's body in band, then [DONE], as vLLM does."""
    return b"data: " + error.body + b"\n\n" + DONE


def models_body(served: ServedModel) -> bytes:
    """The answer to /v1/models."""
    card = {
        "id": served.name,
        "object": "model",
        "created": served.created_s,
        "owned_by": "maxqps",
        "root": served.name,
        "parent": None,
        "max_model_len": served.max_model_len,
    }
    return _json({"object": "list", "data": [card]})


SAMPLES = {
    "running": ("vllm:num_requests_running", "gauge", "Requests in the engine's batch."),
    "waiting": ("vllm:num_requests_waiting", "gauge", "Requests queued in the engine."),
    "kv_usage": ("vllm:kv_cache_usage_perc", "gauge", "KV cache in use; 1 is all of it."),
    "preemptions": ("vllm:num_preemptions_total", "counter", "Requests put back in the queue."),
    "prompt_tokens": ("vllm:prompt_tokens_total", "counter", "Prompt tokens prefilled."),
    "generation_tokens": ("vllm:generation_tokens_total", "counter", "Tokens generated."),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "counter", "Prefix cache: tokens asked."),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "counter", "Prefix cache: tokens found."),
    "steps": ("maxqps:engine_steps_total", "counter", "Steps of the engine."),
    "late_steps": ("maxqps:engine_late_steps_total", "counter", "Steps delivered late."),
}
"""The metrics of an engine under vLLM's names, or ours, with kind and meaning."""


def metrics_body(metrics: Mapping[str, float], served: ServedModel) -> bytes:
    """The answer to /metrics, in Prometheus' text format."""
    name = served.name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    engine = f'engine="0",model_name="{name}"'
    families = [_family(*head, {engine: metrics[field]}) for field, head in SAMPLES.items()]
    ended = {"stop": 0, "length": metrics["finished"], "abort": metrics["aborted"], "error": 0}
    by_reason = {f'{engine},finished_reason="{reason}"': count for reason, count in ended.items()}
    families.append(_family("vllm:request_success_total", "counter", "Requests ended, by reason.", by_reason))
    return "".join(families).encode()


def _family(name: str, kind: str, meaning: str, values: Mapping[str, float]) -> str:
    head = f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
    return head + "".join(f"{name}{{{labels}}} {float(value)}\n" for labels, value in values.items())


def _engine_fields(steps: EngineSteps) -> dict[str, Any]:
    """Our own counts, and `metrics` with the time in the queue (vLLM's --enable-per-request-metrics)."""
    names = ("steps", "late_steps", "first_token_us", "last_token_us")
    metrics = {} if steps.queue_s is None else {"metrics": {"queue_time_ms": 1e3 * steps.queue_s}}
    return metrics | {"maxqps": {name: getattr(steps, name) for name in names}}


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _json(chunk) + b"\n\n"


def _json(value: Any) -> bytes:
    """A string may hold a lone surrogate, which JSON can escape but UTF-8 cannot encode."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
