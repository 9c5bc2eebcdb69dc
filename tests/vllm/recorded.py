"""A scheduler of the engine model that records its steps, for comparisons with vLLM's own."""

from serve_apps.engine_model.cost.step_time import Batch
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.scheduler.scheduler import Scheduler
from tests.support.virtual.engines import check_integrity


class Recorded(Scheduler):
    """Writes down how many tokens of which request every step computes."""

    steps: list[dict[int, int]]

    def schedule(self) -> Batch | None:
        decoding = [request for request in self.running if request._decoding]
        self.chosen: dict[int, int] = {}
        batch = super().schedule()
        if batch is not None:
            number = self._in_flight[-1].number
            self.chosen |= {it.request_id: 1 for it in decoding if it._emits_in(number)}
            self.steps.append(self.chosen)
        check_integrity(self)
        return batch

    def _compute(self, request: RequestState, new: int, *rest: object) -> None:
        self.chosen[request.request_id] = new
        super()._compute(request, new, *rest)  # type: ignore[arg-type]
