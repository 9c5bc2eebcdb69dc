"""A real HTTP server of known answers: texts by their prompt, and to token ids the same tokens every time."""

import json
import math
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ALTERNATIVES = 20
SAME = {f"token_id:{token}": math.log(0.9 if token == 0 else 0.1 / 30) for token in range(ALTERNATIVES)}


class TaskServer:
    """Answers a text prompt by `texts`: with a text, with an HTTP status, or with any tree as its choice.

    `asked` are the bodies of the text questions in the order in which they came.
    """

    def __init__(self, texts: Mapping[str, Any]) -> None:
        self.asked: list[dict[str, Any]] = []
        self._texts, server = texts, self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, tree = server.answer(body, self.headers.get("Authorization", ""))
                sent = json.dumps(tree).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "TaskServer":
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

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
