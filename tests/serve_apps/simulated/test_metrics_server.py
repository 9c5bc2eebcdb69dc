"""`SimulatedPrefill`: a replica whose metrics nobody can read any more is unhealthy."""

import asyncio
from types import SimpleNamespace

import pytest

from serve_apps.simulated.app import SimulatedPrefill


async def health(serving: "asyncio.Task[None]") -> None:
    replica = SimulatedPrefill.__new__(SimulatedPrefill)
    replica._engine = SimpleNamespace(failure="")  # type: ignore[assignment]
    replica._serving, replica._url = serving, "http://127.0.0.1:1"
    await asyncio.wait([serving], timeout=0.01)
    await replica.check_health()


def test_a_server_of_metrics_that_has_ended_is_a_fault() -> None:
    async def served(seconds: float, error: Exception | None = None) -> None:
        await asyncio.sleep(seconds)
        if error:
            raise error

    async def run(seconds: float, error: Exception | None = None) -> None:
        serving = asyncio.create_task(served(seconds, error))
        try:
            await health(serving)
        finally:
            serving.cancel()

    asyncio.run(run(60.0))
    with pytest.raises(RuntimeError, match="metrics at http://127.0.0.1:1 has ended: port gone"):
        asyncio.run(run(0.0, OSError("port gone")))
    with pytest.raises(RuntimeError, match="has ended: no error"):
        asyncio.run(run(0.0))
