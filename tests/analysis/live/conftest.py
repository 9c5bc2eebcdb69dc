"""What tests of live views share: servers that end at once."""

from http.server import ThreadingHTTPServer

import pytest

from analysis.live.server import LiveServer


@pytest.fixture(autouse=True)
def servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's server looks twice a second whether it is to end; these look a hundred times."""
    monkeypatch.setattr(
        LiveServer, "serve_forever", lambda server: ThreadingHTTPServer.serve_forever(server, 0.01)
    )
