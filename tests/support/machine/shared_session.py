"""The one Ray session that a process of tests may have open: it stays until another one is asked for."""

from contextlib import ExitStack
from typing import TYPE_CHECKING

from conf.specs.experiment import Cluster, Routing

if TYPE_CHECKING:
    from cluster.ray_session.session import Session


FAKE = Cluster("two fake nodes", session="fake", nodes=2, gpus_per_node=8)
"""What tests of several folders ask for, so that one session serves them all."""


class SharedSession:
    """A session that tests of several files find open, because to start one takes some ten CPU seconds."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: tuple[Cluster, Routing | None, Session] | None = None

    def of(self, cluster: Cluster, routing: Routing | None) -> "Session":
        """The session of this cluster, with Serve for `routing`; another one that is open ends first."""
        from cluster.ray_session.session import open_session

        if self._open is None or self._open[:2] != (cluster, routing):
            self.close()
            session = self._stack.enter_context(open_session(cluster, routing, load_cpus=1))
            self._open = cluster, routing, session
        return self._open[2]

    def fake(self) -> "Session":
        """A head for load actors and the nodes of `FAKE`, with Serve behind HAProxy."""
        return self.of(FAKE, Routing("leastconn"))

    def close(self) -> None:
        """End the session that is open, if any."""
        self._open = None
        self._stack.close()
