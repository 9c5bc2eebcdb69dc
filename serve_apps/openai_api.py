"""vLLM's OpenAI-compatible wire format as pure functions: bytes in, bytes out; knows no clock and no server.

Read in vLLM's completion and chat servers: shapes, key order, default values and error bodies are
theirs. The simulated engine has no tokenizer: one word between white space is one token, each chat
message costs one more for its role, and every answered token is the word " token", so that an answer
sent back as a prompt counts the same again. It always answers `max_tokens` tokens.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

TOKEN_TEXT = " token"
DONE = b"data: [DONE]\n\n"
JSON_TYPE = b"application/json"
SSE_TYPE = b"text/event-stream; charset=utf-8"
METRICS_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
DEFAULT_MAX_TOKENS = 16
"""vLLM's default of /v1/completions; a chat without `max_tokens` may fill the model's context."""

NOT_SIMULATED = ("echo", "logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "use_beam_search")
"""Parameters that would change the shape of an answer in a way the simulated engine cannot follow."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What /v1/models tells, and what bounds a request; `created_s` is in Unix seconds."""

    name: str
    max_model_len: int
    vocab: int
    created_s: int = 0


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request the engine can serve; the text of a prompt is of no use to it, only its length."""

    chat: bool
    input_tokens: int
    output_tokens: int
    stream: bool
    include_usage: bool = False
    usage_in_each: bool = False


@dataclass(frozen=True, slots=True)
class EngineSteps:
    """Steps that gave a request a token, and how many of them came later than half their duration."""

    steps: int
    late_steps: int


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """One scrape of an engine; counters are totals since its start, `kv_usage` is 0 to 1."""

    running: int
    waiting: int
    kv_usage: float
    preemptions: int
    prompt_tokens: int
    generation_tokens: int
    finished: int
    aborted: int
    steps: int
    late_steps: int


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
    """The refusal of a body that is not of the right shape (vLLM names it after the HTTP phrase)."""
    return ApiError(message, kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def server_error(message: str) -> ApiError:
    """The engine cannot answer; the fault is not the request's."""
    return ApiError(message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError")


def not_found(method: str, path: str) -> ApiError:
    """No such method on that path."""
    return ApiError(f"{method} {path} is not served", HTTPStatus.NOT_FOUND, "NotFoundError")


def parse_completion(body: bytes, served: ServedModel) -> ApiRequest:
    """The body of /v1/completions: a prompt as text or as token ids. Raises ApiError."""
    fields = _fields(body)
    _require_model(fields, served)
    input_tokens = _prompt_tokens(fields.get("prompt"), served)
    asked = _integer(fields, "max_tokens")
    return _request(fields, served, False, input_tokens, DEFAULT_MAX_TOKENS if asked is None else asked)


def parse_chat(body: bytes, served: ServedModel) -> ApiRequest:
    """The body of /v1/chat/completions. Raises ApiError."""
    fields = _fields(body)
    _require_model(fields, served)
    input_tokens = _message_tokens(fields.get("messages"))
    asked = _integer(fields, "max_completion_tokens")
    if asked is None:
        asked = _integer(fields, "max_tokens")
    return _request(fields, served, True, input_tokens, asked)


def _fields(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise invalid(f"JSON decode error: {error}") from error
    if not isinstance(fields, dict):
        raise invalid("the body must be a JSON object")
    return fields


def _require_model(fields: dict[str, Any], served: ServedModel) -> None:
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise invalid("model must be a string", "model")
    if name and name != served.name:
        message = f"The model `{name}` does not exist."
        raise ApiError(message, HTTPStatus.NOT_FOUND, "NotFoundError", "model")


def _prompt_tokens(prompt: Any, served: ServedModel) -> int:
    """Length of the one prompt; vLLM also takes a list of one prompt."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None or prompt == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, str):
        return max(1, len(prompt.split()))
    if not isinstance(prompt, list):
        raise invalid("prompt must be a string or a list of token ids", "prompt")
    if not prompt:
        raise ApiError("The decoder prompt cannot be empty", param="prompt")
    kinds = set(map(type, prompt))
    if kinds <= {str, list}:
        raise ApiError("the simulated engine takes one prompt per request", param="prompt")
    if kinds != {int}:
        raise invalid("prompt must be a string or a list of token ids", "prompt")
    if min(prompt) < 0:
        raise invalid("token ids must not be negative", "prompt")
    if max(prompt) >= served.vocab:
        raise ApiError(f"Token id {max(prompt)} is out of vocabulary", param="prompt")
    return len(prompt)


def _message_tokens(messages: Any) -> int:
    if not isinstance(messages, list) or not messages:
        raise invalid("messages must be a non-empty list", "messages")
    return sum(1 + _words(message) for message in messages)


def _words(message: Any) -> int:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise invalid("each message must be an object with a role", "messages")
    content = message.get("content")
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return sum(len(str(part.get("text", "")).split()) for part in content)
    raise invalid("the content of a message must be a string or a list of parts", "messages")


def _request(
    fields: dict[str, Any], served: ServedModel, chat: bool, input_tokens: int, asked: int | None
) -> ApiRequest:
    _refuse_not_simulated(fields)
    if asked is not None and asked < 1:
        message = f"max_tokens must be at least 1, got {asked}. (parameter=max_tokens, value={asked})"
        raise ApiError(message, param="max_tokens")
    _require_room(input_tokens, asked or 1, served.max_model_len)
    output_tokens = served.max_model_len - input_tokens if asked is None else asked
    _require_min_tokens(_integer(fields, "min_tokens") or 0, output_tokens)
    stream = _flag(fields, "stream")
    options = fields.get("stream_options") or {}
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    if options and not stream:
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")
    usage = bool(options) and _flag(options, "include_usage", default=True)
    in_each = usage and _flag(options, "continuous_usage_stats")
    return ApiRequest(chat, input_tokens, output_tokens, stream, usage, in_each)


def _refuse_not_simulated(fields: dict[str, Any]) -> None:
    if (choices := _integer(fields, "n")) not in (None, 1):
        raise ApiError(f"n={choices} is not available from the simulated engine", param="n")
    for name in NOT_SIMULATED:
        if fields.get(name):
            raise ApiError(f"{name} is not available from the simulated engine", param=name)


def _require_room(input_tokens: int, output_tokens: int, max_model_len: int) -> None:
    total = input_tokens + output_tokens
    if total > max_model_len:
        raise ApiError(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{output_tokens} output tokens and your prompt contains {input_tokens} input tokens, for a "
            f"total of {total} tokens. Please reduce the length of the input prompt or the number of "
            f"requested output tokens. (parameter=input_tokens, value={input_tokens})",
            param="input_tokens",
        )


def _require_min_tokens(least: int, output_tokens: int) -> None:
    if least < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {least}.", param="min_tokens")
    if least > output_tokens:
        message = f"min_tokens must be less than or equal to max_tokens={output_tokens}, got {least}."
        raise ApiError(message, param="min_tokens")


def _integer(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or type(value) is int:
        return value
    raise invalid(f"{name} must be an integer", name)


def _flag(fields: dict[str, Any], name: str, default: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool):
        return value
    raise invalid(f"{name} must be true or false", name)


class Answer:
    """The bytes of one answer; what is constant over its tokens is formatted once."""

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

    def tokens(self, seen: int, count: int) -> bytes:
        """The SSE events of tokens `seen` to `count` - 1 (from 0); the first brings a chat's role along."""
        role = self._role() if self.request.chat and not seen else b""
        if self.request.usage_in_each:
            return role + b"".join(self._token_with_usage(index + 1) for index in range(seen, count))
        if count < self.request.output_tokens:
            return role + self._token * (count - seen)
        return role + self._token * (count - seen - 1) + self._last

    def end(self, steps: EngineSteps) -> bytes:
        """The closing events: usage where it was asked for, and [DONE]."""
        if not self.request.include_usage:
            return DONE
        closing = {"choices": [], "usage": self._usage(self.request.output_tokens), "maxqps": _steps(steps)}
        return _event(self._head | closing) + DONE

    def whole(self, steps: EngineSteps) -> bytes:
        """The body of an answer that is not streamed."""
        text = TOKEN_TEXT * self.request.output_tokens
        choice: dict[str, Any] = {"index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": "length", "stop_reason": None}
        kind = "chat.completion" if self.request.chat else "text_completion"
        usage = self._usage(self.request.output_tokens)
        return _json(
            self._head | {"object": kind, "choices": [choice], "usage": usage, "maxqps": _steps(steps)}
        )

    def _chunk(self, finish_reason: str | None, usage: dict[str, Any] | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": TOKEN_TEXT}} if self.request.chat else {"text": TOKEN_TEXT}
        choice |= {"logprobs": None, "finish_reason": finish_reason}
        if finish_reason or not self.request.chat:
            choice["stop_reason"] = None
        return _event(self._head | {"choices": [choice]} | ({"usage": usage} if usage else {}))

    def _role(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        usage = {"usage": self._usage(0)} if self.request.usage_in_each else {}
        return _event(self._head | {"choices": [choice]} | usage)

    def _token_with_usage(self, count: int) -> bytes:
        last = count == self.request.output_tokens
        return self._chunk("length" if last else None, self._usage(count))

    def _usage(self, output_tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.request.input_tokens,
            "total_tokens": self.request.input_tokens + output_tokens,
            "completion_tokens": output_tokens,
            "prompt_tokens_details": {"cached_tokens": 0},
        }


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


def metrics_body(metrics: EngineMetrics, served: ServedModel) -> bytes:
    """The answer to /metrics, in Prometheus' text format under vLLM's names; ours begin with maxqps."""
    engine = f'engine="0",model_name="{_escape(served.name)}"'
    ended = {"stop": 0, "length": metrics.finished, "abort": metrics.aborted, "error": 0}
    by_reason = {f'{engine},finished_reason="{reason}"': count for reason, count in ended.items()}
    families = [
        _family(name, kind, meaning, {engine: value}) for name, kind, meaning, value in _samples(metrics)
    ]
    families.append(_family("vllm:request_success_total", "counter", "Requests ended, by reason.", by_reason))
    return "".join(families).encode()


def _family(name: str, kind: str, meaning: str, values: Mapping[str, float]) -> str:
    head = f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"
    return head + "".join(f"{name}{{{labels}}} {float(value)}\n" for labels, value in values.items())


def _samples(metrics: EngineMetrics) -> Iterable[tuple[str, str, str, float]]:
    yield "vllm:num_requests_running", "gauge", "Requests in the engine's batch.", metrics.running
    yield "vllm:num_requests_waiting", "gauge", "Requests queued in the engine.", metrics.waiting
    yield "vllm:kv_cache_usage_perc", "gauge", "KV cache in use; 1 is all of it.", metrics.kv_usage
    yield "vllm:num_preemptions_total", "counter", "Requests put back in the queue.", metrics.preemptions
    yield "vllm:prompt_tokens_total", "counter", "Prompt tokens prefilled.", metrics.prompt_tokens
    yield "vllm:generation_tokens_total", "counter", "Tokens generated.", metrics.generation_tokens
    yield "vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache.", 0
    yield "vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache.", 0
    yield "maxqps:engine_steps_total", "counter", "Steps of the engine.", metrics.steps
    yield "maxqps:engine_late_steps_total", "counter", "Steps delivered late.", metrics.late_steps


def _steps(steps: EngineSteps) -> dict[str, int]:
    return {"steps": steps.steps, "late_steps": steps.late_steps}


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _json(chunk) + b"\n\n"


def _json(value: Any) -> bytes:
    """A string may hold a lone surrogate, which JSON can escape but UTF-8 cannot encode."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
