"""A service that came back at other addresses: load and samples follow it there."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from analysis.rows.records import read_stream
from analysis.rows.time_series import SERVER
from loadgen.fleet.http_client import Client
from loadgen.fleet.sse import Exchange
from loadgen.run import metrics_scraper
from tests.support.machine.patience import until
from tests.support.servers.mock_server import MockServer

BODY = json.dumps({"prompt": [1, 2, 3], "max_tokens": 3}).encode()


def test_requests_go_to_the_new_address_and_what_flies_ends_at_the_old_one() -> None:
    async def main() -> tuple[int, int, list[str | None]]:
        ended: asyncio.Queue[Exchange] = asyncio.Queue()
        async with MockServer() as old, MockServer() as new:
            client = Client([old.url], ended.put_nowait, timeout_s=2.0)
            client.start(Exchange(0, 3), BODY)
            await client.retarget([new.url])
            client.start(Exchange(1, 3), BODY)
            states = [(await asyncio.wait_for(ended.get(), 5)).status for _ in range(2)]
            client.cut_all("interrupted")
            return len(old.requests), len(new.requests), states

    assert asyncio.run(main()) == (1, 1, ["ok", "ok"])


@contextmanager
def metrics(running: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"vllm:num_requests_running %d\n" % running)

        def log_message(self, *_: object) -> None:
            """Nothing to stderr."""

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=httpd.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}/metrics"
    finally:
        httpd.shutdown()
        httpd.server_close()


def test_samples_are_those_of_the_new_replicas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_scraper, "PERIOD_S", 0.1)
    path = tmp_path / "server.arrow"

    def sampled() -> set[tuple[str, int]]:
        return {(row["replica"], row["running"]) for row in read_stream(path, SERVER).to_pylist()}

    def wait(sample: tuple[str, int]) -> None:
        until(lambda: sample in sampled(), "never sampled")

    with (
        metrics(1) as old,
        metrics(2) as new,
        metrics_scraper.Scraper({"r0": old}, path, time.monotonic_ns) as scraper,
    ):
        wait(("r0", 1))
        scraper.follow({"r1": new})
        wait(("r1", 2))
    assert sampled() == {("r0", 1), ("r1", 2)}
