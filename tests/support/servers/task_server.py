"""A real HTTP server of known answers: texts by their prompt, and to token ids the same tokens every time."""

import json
import math
from collections.abc import Mapping
from typing import Any

from tests.support.servers.threaded_server import Reply, reply, serving

ALTERNATIVES = 20
SAME = {f"token_id:{token}": math.log(0.9 if token == 0 else 0.1 / 30) for token in range(ALTERNATIVES)}


class TaskServer:
    """Answers a text prompt by `texts`: with a text, with an HTTP status, or with any tree as its choice.

    `asked` are the bodies of the text questions in the order in which they came.
    """

    def __init__(self, texts: Mapping[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._texts = texts

    def __enter__(self) -> "TaskServer":
        self._served = serving(self._reply)
        self.url = self._served.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._served.__exit__(*error)

    def _reply(self, headers: Mapping[str, str], content: bytes) -> Reply:
        status, tree = self.answer(json.loads(content), headers.get("Authorization", ""))
        return reply(tree, status)

    def answer(self, body: dict[str, Any], authorization: str) -> tuple[int, Any]:
        """Status and body of an answer; a text with {key} in it brings the request's key back."""
        prompt, count = body["prompt"], body["max_tokens"]
        if isinstance(prompt, list):
            shown = {"top_logprobs": [SAME] * count}
            choice = {"token_ids": [0] * count, "prompt_token_ids": prompt, "logprobs": shown}
            return 200, {"choices": [choice]}
        self.asked.append(body)
        known = self._texts[prompt]
        if isinstance(known, int):
            return known, {"error": {"message": f"no answer for {authorization}"}}
        if isinstance(known, str):
            known = {"text": known.replace("{key}", authorization.removeprefix("Bearer "))}
        return 200, {"choices": [known]}
