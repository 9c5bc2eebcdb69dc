"""vLLM's own server as a child process, behind a replica that hands requests and tokens through.

Allows the `mp` executor on GPUs, and versions of vLLM that Ray's LLM library does not support.
Costs one more hop on the loopback address.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import aiohttp
import ray
from ray import serve

from serve_apps.routing.loopback import LOOPBACK, reserved_port, stay_on_loopback
from serve_apps.vllm_engine.forwarding import Forwarding, StampedApp
from serve_apps.vllm_engine.node_share import own_caches

POLL_S = 0.5
STOP_S = 12.0
"""A stop by signal has to end before Serve kills the replica (`config_file.OPTIONS`)."""
SERVER = "vllm.entrypoints.openai.api_server"
"""The module behind `vllm serve`, a command that CPU builds lack: it needs a distribution named vllm."""
LOG_TAIL_BYTES = 64_000
NO_CAUSE = ("WARNING", "Engine core initialization failed")
"""Words of lines that name an error but not its cause; processes that end later add warnings."""
GUARD = """
(while grep -qx "PPid:.$PPID" /proc/$$/status; do sleep 1; done; kill -KILL 0) 2>/dev/null &
exec "$@"
"""
"""Ends the group: an actor that is killed cannot stop its child, and an engine may outlive its own server."""


class VllmProcessReplica:
    """One server process. Serve calls the async constructor and replaces the replica when it is unhealthy.

    The server ends with the application: Serve sends it the shutdown of the lifespan protocol.
    """

    async def __init__(self, words: list[str], start_timeout_s: float) -> None:  # type: ignore[misc]
        stay_on_loopback()
        self._replica_id = serve.get_replica_context().replica_id.unique_id
        self._log = Path(tempfile.gettempdir()) / f"vllm-{self._replica_id}.log"
        self._words = words
        began_s = time.monotonic()
        self._port = reserved_port()  # held as long as the replica lives
        address = f"{self._port.getsockname()[1]}"
        self._url = f"http://{LOOPBACK}:{address}"
        self._app = Forwarding(self._url, self._shut_down)
        argv = [sys.executable, "-m", SERVER, *words, "--host", LOOPBACK, "--port", address]
        with self._log.open("wb") as log:
            # A group of its own, so that its engine and workers end with it.
            self._process = await asyncio.create_subprocess_exec(
                *guarded(argv),
                env=own_caches(ray.get_gpu_ids(), str(Path.home())) | dict(os.environ),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            await self._await_ready(began_s + start_timeout_s)
        except BaseException:
            await self._stop()
            raise
        self._start_s = time.monotonic() - began_s

    async def __serve_build_asgi_app__(self) -> StampedApp:
        described = {"pid": self._process.pid, "start_s": self._start_s, "engine": {"argv": self._words}}
        return StampedApp(self._app, self._replica_id, described)

    async def check_health(self) -> None:
        if self._process.returncode is not None:
            raise RuntimeError(f"vLLM ended with {self._process.returncode}: {self._said()}")

    async def _shut_down(self) -> None:
        """End the server. Its log stays if the server had failed, because a message names the file."""
        failed = self._process.returncode is not None
        await self._stop()
        if not failed:
            self._log.unlink(missing_ok=True)

    async def _await_ready(self, deadline_s: float) -> None:
        async with aiohttp.ClientSession() as client:
            while True:
                await self.check_health()
                with suppress(aiohttp.ClientError, OSError):
                    async with client.get(f"{self._url}/health", allow_redirects=False) as response:
                        if response.status == HTTPStatus.OK:
                            return
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"vLLM was not ready in time: {self._said()}")
                await asyncio.sleep(POLL_S)

    async def _stop(self) -> None:
        """End the server, and whatever of its group is left then."""
        self._signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), STOP_S)
        self._signal(signal.SIGKILL)
        await self._process.wait()
        self._port.close()

    def _signal(self, kind: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, kind)

    def _said(self) -> str:
        """The last error in its log, or else the last line, and where the log is."""
        tail = self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        lines = [line.strip() for line in tail.splitlines() if line.strip()]
        errors = [line for line in lines if "Error:" in line and not any(word in line for word in NO_CAUSE)]
        return f"{(errors or lines or ['it wrote nothing'])[-1]} (log: {self._log})"


def guarded(argv: Sequence[str]) -> list[str]:
    """`argv` as the leader of a group that is killed once it, or the process that starts it, has ended."""
    return ["/bin/sh", "-c", GUARD, "sh", *argv]
