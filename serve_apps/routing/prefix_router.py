"""Ray's router by the text of prompts, for requests that HAProxy sends; imports vLLM, so nodes only."""

from ray.serve.llm.request_router import PrefixCacheAffinityRouter
from ray.serve.request_router import PendingRequest, RunningReplica


class PrefixRouter(PrefixCacheAffinityRouter):  # type: ignore[misc]
    """Ray's router, which also remembers the prompts whose replica HAProxy asked for.

    Ray 2.60 enters a prompt into its tree of prefixes when it sends the request itself. Behind HAProxy it
    only names the replica, the tree stays empty, and Ray's class then names one replica for all requests.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        ranks: list[list[RunningReplica]]
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        if pending_request is not None and ranks and ranks[0]:
            self.on_request_routed(pending_request, ranks[0][0].replica_id, None)
        return ranks

    def _extract_text_from_request(self, pending_request: PendingRequest) -> str | None:
        """The prompt; None for one without text and for one that Serve's own proxy hands on unread.

        Any replica may serve these: HAProxy sends to the proxy what comes before its first look at a replica.
        Ray's class raises for the one and divides by the length of the other, and the request hangs for ever.
        """
        try:
            return str(super()._extract_text_from_request(pending_request)) or None
        except ValueError:
            return None
