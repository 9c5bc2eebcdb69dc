"""`loadgen.fleet.http_client`: how long a connection that is kept may be idle before it is used again."""

import asyncio

import pytest

from loadgen.fleet import http_client
from tests.support.machine.patience import PATIENCE_NS
from tests.support.servers.mock_exchanges import exchanges
from tests.support.servers.mock_server import MockServer


@pytest.mark.parametrize(("limit_ns", "connections"), [(PATIENCE_NS, 1), (0, 3)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    limit_ns: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers close idle connections, and a request on a closed one would fail."""
    monkeypatch.setattr(http_client, "IDLE_LIMIT_NS", limit_ns)

    async def opened() -> int:
        async with MockServer() as server:
            assert [one.status for one in await exchanges(server.url, 3)] == ["ok"] * 3
            return server.connections

    assert asyncio.run(opened()) == connections
