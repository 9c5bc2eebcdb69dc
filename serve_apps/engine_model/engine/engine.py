"""One engine replica as a state machine: requests in, timed tokens out.

Time is an argument. The tokens of a step exist at the end that `begin_step` returns, when `end_step` is due.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from serve_apps.engine_model.engine import kinds, rules, state, steps
from serve_apps.engine_model.engine.kinds import EngineKind, Ints
from serve_apps.engine_model.engine.native import NONE
from serve_apps.engine_model.engine.state import Arrays

Kv = Literal["own", "held", "remote"]
"""Whose KV a request decodes with: its own; its own, which another engine takes over; another engine's."""
KV: tuple[Kv, ...] = ("own", "held", "remote")
ROOM = 64
"""Requests for which a new engine has room; more is taken when it is needed."""
LARGEST_NAME = (1 << 62) - 1
LATER = "Please try again later or on a different instance."


class QueueFull(ValueError):
    """A queue limit refuses a request that the engine could serve later; the message is vLLM's."""


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Exactly `output_tokens` are emitted.

    `hashes[i]` stands for all prompt tokens up to the end of the i-th full KV block: prompts that begin
    alike have the same ones. Blocks beyond them are not shared. `new_image_tokens` of the prompt are
    images that must be decoded and encoded first.

    With `kv` held the blocks stay after the end until `Engine.transfer_ends`. With remote the prompt is
    computed elsewhere: the request takes blocks, appears in `Engine.loading` and waits for `transfer_ends`.
    """

    input_tokens: int
    output_tokens: int
    hashes: tuple[Hashable, ...] = ()
    new_image_tokens: int = 0
    kv: Kv = "own"


def _known(time_s: float) -> float | None:
    return None if math.isnan(time_s) else float(time_s)


def _column(name: str, value: Callable[[Any], Any]) -> Any:
    """The field `name` of a request."""
    return property(lambda request: value(request.now[name]))


class RequestState:
    """A request as an engine's arrays have it; times in seconds, None before they are."""

    request_id: int = _column("serial", int)
    """The number of the request among all of its engine."""
    prompt_tokens: int = _column("prompt", int)
    emitted: int = _column("emitted", int)
    """Output tokens that exist."""
    first_token_s: float | None = _column("first_s", _known)
    last_token_s: float | None = _column("last_s", _known)
    """Time of the latest token."""
    begun_s: float | None = _column("begun_s", _known)
    """The begin of the first step that computed it, after a preemption anew."""
    cached_tokens: int = _column("cached", int)
    """Prompt tokens that had their KV when first admitted, another engine's included; -1 before."""
    tokens_to_load: int = _column("to_load", int)
    """Prompt tokens of which another engine's KV is awaited, or was."""

    def __init__(self, arrays: Arrays, row: int, pieces: Ints | None = None) -> None:
        self._arrays, self.row = arrays, row
        self._pieces = pieces  # the arrays have its address
        self._end: Any = None

    @property
    def now(self) -> Any:
        """Its row, or what was known at its end."""
        return self._arrays.requests[self.row] if self._end is None else self._end

    def end(self) -> None:
        """Keep what is known now: the engine forgets the request."""
        self._end = self.now.copy()

    @property
    def over(self) -> bool:
        """It has finished or was aborted."""
        return self._end is not None

    @property
    def finished(self) -> bool:
        return bool(self.emitted == self.now["output"])

    @property
    def queue_s(self) -> float | None:
        """Time in the scheduler's queue, up to the first step that computes it."""
        return _known(self.now["scheduled_s"] - self.now["queued_s"])


class Engine:
    """vLLM's scheduler, or data-parallel ranks of it, over a step-time model, behind a serial front end.

    `seed` draws its noise.
    """

    def __init__(self, kind: EngineKind, seed: int = 0) -> None:
        self.kind = kind
        arrays, (self._noise,) = kinds.empty_arrays([(kind, 1)], [seed])
        arrays.make_books(kind.blocks * kind.width, 0)
        arrays.make_requests(ROOM)
        self.arrays = arrays
        self._rows: dict[int, RequestState] = {}
        self._free = list(range(ROOM - 1, -1, -1))
        self._leaving: list[int] = []  # rows of requests that are over, and may hold blocks
        self._added = 0

    def check(self, input_tokens: int, output_tokens: int) -> None:
        """Raise ValueError for a request that can never be served."""
        self.kind.refuse_impossible(f"request {self._added}", input_tokens, output_tokens)

    def add(self, request: GenerateRequest, now_s: float) -> RequestState:
        """Pass the front end, then wait in turn; returns the request's live state, to be read only.

        Raises as `check`, and QueueFull where a queue limit refuses the request now.
        """
        self.check(request.input_tokens, request.output_tokens)
        rank = int(steps.choose_rank(self.arrays.address, 0, now_s))
        self._refuse_beyond_limits(rank)
        row, pieces = self._new_row(), self._pieces(request)
        fields = self.arrays.requests[row]
        fields["serial"], fields["shares"], fields["pieces"] = self._added, pieces.ctypes.data, len(pieces)
        fields["prompt"], fields["output"] = request.input_tokens, request.output_tokens
        fields["kv"] = KV.index(request.kv)
        self._make_room_for_cells()
        added = self._rows[row] = RequestState(self.arrays, row, pieces)
        self._added += 1
        images_s = request.new_image_tokens * (self.kind.step_time.image_token_us.value * 1e-6)
        steps.add(self.arrays.address, rank, row, now_s, images_s)
        return added

    def abort(self, request: RequestState) -> None:
        """Drop a request and free its blocks; one that is over is ignored.

        Blocks for which KV is on its way stay until `transfer_ends`.
        """
        if not request.over:
            rules.abort(self.arrays.address, self._rank(request), request.row)
            self._forget(request)

    def loading(self) -> list[RequestState]:
        """Requests that took blocks since the last call: the transfer of `tokens_to_load` may begin."""
        loading = []
        while (row := steps.pop_started(self.arrays.address, 0)) != NONE:
            loading.append(self._rows[row])
        return loading

    def transfer_ends(self, request: RequestState, at_s: float = -math.inf) -> None:
        """The transfer to a request, or from one that is held, ends at `at_s`, which may lie ahead.

        Requests that await none are ignored. vLLM's workers look for it when a step is handed to them, and
        its scheduler learns it when that step is over (`KVConnectorOutput`).
        """
        fields = self.arrays.requests[request.row]
        awaited = fields["place"] in (state.LOADING, state.KEPT) and not fields["loaded"]
        if self._rows.get(request.row) is request and awaited and math.isnan(fields["moved_s"]):
            steps.transfer_ends(self.arrays.address, self._rank(request), request.row, at_s)

    def begin_step(self, now_s: float) -> float | None:
        """Start a step at `now_s`; returns its end, at which `end_step` is due, or None without work."""
        if steps.lacks_noise(self.arrays.address, 0):
            self._noise.draw(self.arrays, 0)
        if not steps.begin(self.arrays.address, 0, now_s):
            return None
        steps.begin_ahead(self.arrays.address, 0)
        return float(self.arrays.groups["end_s"][0])

    def emitting(self) -> list[RequestState]:
        """The requests that get a token from the step begun last; valid until `end_step`."""
        rows, emitting = np.empty(len(self.arrays.requests), np.int64), []
        for rank in range(self.kind.width):
            if self.arrays.engines["stepping"][rank]:
                count = rules.emitting(self.arrays.address, rank, rows)
                emitting += [self._rows[row] for row in rows[:count].tolist()]
        return emitting

    def end_step(self) -> list[RequestState]:
        """Emit the tokens of the step begun last; returns the requests that finished."""
        steps.end(self.arrays.address, 0)
        finished = []
        for rank in range(self.kind.width):
            while (row := steps.pop_finished(self.arrays.address, rank)) != NONE:
                finished.append(self._rows[row])
                self._forget(finished[-1])
        self._recycle()
        return finished

    def ready_s(self) -> float:
        """Earliest time a step has work: -inf when it is there already, inf when the engine is empty."""
        return min(float(steps.ready_s(self.arrays.address, rank)) for rank in range(self.kind.width))

    @property
    def running(self) -> int:
        return self._count(state.RUNNING)

    @property
    def waiting(self) -> int:
        """Requests in the front end, queued, or without the KV that another engine computes."""
        return self._count(state.ARRIVING) + self._count(state.WAITING) + self._count(state.LOADING)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return float(1 - self.arrays.engines["free"].sum() / self.arrays.engines["blocks"].sum())

    def total(self, counter: str) -> int:
        """A counter of `state.ENGINE`, such as preemptions, over all ranks."""
        return int(self.arrays.engines[counter].sum())

    def _rank(self, request: RequestState) -> int:
        return int(self.arrays.requests["engine"][request.row])

    def _count(self, place: int) -> int:
        return int(self.arrays.queues["count"][:, place].sum())

    def _refuse_beyond_limits(self, rank: int) -> None:
        """vLLM's check_admission: all open requests count, and the whole prompts still in prefill."""
        most, most_tokens = self.kind.spec.max_num_queued_reqs, self.kind.spec.max_num_queued_tokens
        if most is None and most_tokens is None:
            return
        own = [row for row in self._rows.values() if not row.over and rank == self._rank(row)]
        in_prefill = sum(request.prompt_tokens for request in own if request.first_token_s is None)
        if most is not None and len(own) >= most:
            raise QueueFull(f"The engine is currently busy and cannot accept new requests. {LATER}")
        if most_tokens is not None and in_prefill >= most_tokens:
            raise QueueFull(f"The engine has reached its prefill token backlog limit. {LATER}")

    def _new_row(self) -> int:
        if not self._free:
            held = len(self.arrays.requests)
            self.arrays.grow(requests=held, links=held)
            self._free = list(range(2 * held - 1, held - 1, -1))
        row = self._free.pop()
        self.arrays.requests[row] = state.NEW_REQUEST
        return row

    def _pieces(self, request: GenerateRequest) -> Ints:
        """The blocks of a prompt that others may share: a name and its place for each."""
        spec = self.kind.spec
        full = request.input_tokens // spec.block_size if spec.enable_prefix_caching else 0
        names = [hash(each) & LARGEST_NAME for each in request.hashes[:full]]
        return np.stack([np.array(names, np.int64), np.arange(1, len(names) + 1)], axis=1)

    def _make_room_for_cells(self) -> None:
        """A request has no more of them than blocks."""
        requests = self.arrays.requests
        tokens = requests["prompt"].sum() + requests["output"].sum()
        cells = 1 + 2 * len(requests) + int(tokens) // self.kind.spec.block_size
        if cells > len(self.arrays.cells):
            self.arrays.grow(cells=cells)

    def _forget(self, request: RequestState) -> None:
        """A request is over; its row is free once its blocks are."""
        request.end()
        self._leaving.append(request.row)

    def _recycle(self) -> None:
        leaving, self._leaving = self._leaving, []
        for row in leaving:
            if self.arrays.requests["place"][row] != state.NOWHERE:
                self._leaving.append(row)
                continue
            del self._rows[row]
            self._free.append(row)
