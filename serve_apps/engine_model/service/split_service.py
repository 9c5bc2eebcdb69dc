"""Prefill and decode engines apart on one virtual clock, and the KV that goes from one to the other.

A request goes the way of `ray.serve.llm`'s prefill and decode servers: the balancer chooses a decode engine,
whose server chooses a prefill engine as a Serve handle does, by the fewer open requests of two. Engines
wait for each other, so their steps are taken in the order of time.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from operator import attrgetter

from conf.specs.experiment import Hardware, Layout, Model, SimulatedEngine
from serve_apps.engine_model.cost.transfer import KvLink, TransferSeconds
from serve_apps.engine_model.scheduler.engine import BlockEngine, GenerateRequest
from serve_apps.engine_model.scheduler.kv_cache import Chain
from serve_apps.engine_model.scheduler.request import RequestState
from serve_apps.engine_model.service.balancer import Balance, Balancer
from serve_apps.engine_model.service.virtual_service import Stepped, VirtualService

PREFILL_STREAM = 1 << 20
"""Added to the seed for choices among prefill engines: they are not those among decode engines."""
STANDSTILL = (
    "prefill and decode engines wait for each other's KV blocks for ever, as vLLM's would; "
    "raise num_gpu_blocks, or use layout.transfer_mode=read"
)
_MOST_STARTS = 4096
"""Starts of steps that are kept before those that no prompt needs are forgotten."""


@dataclass(slots=True, eq=False)
class _Journey:
    """A request on both engines: when its prompt was computed, and when there were blocks for it."""

    ask: GenerateRequest
    decode: "_Decode"
    prefill: "_Prefill"
    computing: RequestState
    decoding: RequestState | None = None
    begun_s: float = 0.0
    computed_s: float | None = None
    taken_s: float | None = None


class SplitService(VirtualService):
    """`prefill` engines before `decode` engines, as the split `layout` of `model` says.

    Its replicas are the decode engines, and a request may name one. In write mode tight caches can stop both
    sides for ever, on vLLM too; `advance` raises ValueError then. The constructor raises it for an unknown
    policy, no engine on one side, and a layout that is not split.
    """

    def __init__(
        self,
        prefill: Sequence[BlockEngine],
        decode: Sequence[BlockEngine],
        layout: Layout,
        model: Model,
        policy: str | Balance = "leastconn",
        seed: int = 0,
    ) -> None:
        if not prefill or not decode:
            raise ValueError("a split service needs at least one prefill and one decode engine")
        seconds, writes, numbers = TransferSeconds.of(model, layout), layout.transfer_mode == "write", count()
        self._handle = Balancer(Balance("pow2"), len(prefill), seed + PREFILL_STREAM)
        self._prefill = [_Prefill(engine) for engine in prefill]
        decoding = [_Decode(each, KvLink(seconds), writes, numbers, self._choose) for each in decode]
        self._engines: list[_Timed] = [*self._prefill, *decoding]
        super().__init__(decoding, policy, seed)

    @classmethod
    def of(
        cls,
        spec: SimulatedEngine,
        model: Model,
        hardware: Hardware,
        layout: Layout,
        nodes: int = 1,
        policy: str | Balance = "leastconn",
        seed: int = 0,
    ) -> "SplitService":
        """The engines of a split layout on `nodes` nodes, each with a stream of noise of its own.

        Raises ValueError for a layout that is not split, weights that do not fit and an unknown figure.
        """
        first, sides = seed, []
        for side in (layout.decode_side, layout.prefill_side):
            engines = nodes * side.replicas_per_node if side else 0
            sides.append(
                [side_engine(spec, model, hardware, layout, side, first + i) for i in range(engines)]
            )
            first += engines
        decode, prefill = sides
        return cls(prefill, decode, layout, model, policy, seed)

    def _choose(self) -> "_Prefill":
        return self._prefill[self._handle.choose(-1, [each.open_requests for each in self._prefill])]

    def _run(self, until_s: float) -> None:
        next_of = attrgetter("due")
        while True:
            engine = min(self._engines, key=next_of)
            at_s, begins = engine.due
            if at_s == math.inf and any(each.open_requests for each in self._replicas):
                raise ValueError(STANDSTILL)
            if at_s > until_s or (begins and at_s == until_s):  # arrivals of that instant join a step
                break
            engine.step()
        self.now_s = max(self.now_s, until_s)


def side_engine(
    spec: SimulatedEngine,
    model: Model,
    hardware: Hardware,
    layout: Layout,
    side: Layout | None,
    seed: int = 0,
) -> BlockEngine:
    """An engine of one side of a split `layout`; MoRI-IO needs the prefix cache off.

    Raises ValueError for a side that does not exist, weights that do not fit and an unknown figure.
    """
    if side is None:
        raise ValueError(f"layout {layout.name} has no prefill engines")
    if layout.connector == "moriio":
        spec = replace(spec, enable_prefix_caching=False)
    return BlockEngine(spec, model, hardware, side, seed)


class _Timed(Stepped):
    """An engine that takes one event at a time: the end of a step, or the begin of one.

    `due` is the time of the next and whether it is a begin.
    """

    engine: BlockEngine

    def __init__(self, engine: BlockEngine) -> None:
        super().__init__(engine)
        self.due = engine.ready_s(), True

    def step(self) -> None:
        """Take the event that is due."""
        at_s, begins = self.due
        if begins:
            self._end_s = self.engine.begin_step(at_s)
            self._begun(at_s)
        else:
            self._free_s = at_s
            self._end_s = None
            for state in self.engine.end_step():
                self._finished(state, at_s)
        self.look()

    def look(self) -> None:
        """Find the next event anew, as the engine was given something."""
        if self._end_s is None:
            self.due = max(self._free_s, self.engine.ready_s()), True
        else:
            self.due = self._end_s, False

    def _begun(self, at_s: float) -> None:
        raise NotImplementedError

    def _finished(self, state: RequestState, at_s: float) -> None:
        raise NotImplementedError


class _Prefill(_Timed):
    """Computes prompts and keeps their blocks until the KV is with the decode engine."""

    def __init__(self, engine: BlockEngine) -> None:
        super().__init__(engine)
        self._journeys: dict[int, _Journey] = {}
        self._starts: dict[int, float] = {}

    @property
    def open_requests(self) -> int:
        return len(self._journeys)

    def compute(self, ask: GenerateRequest, decode: "_Decode", at_s: float) -> _Journey:
        """Raises ValueError for a prompt that never fits."""
        state = self.engine.add(replace(ask, output_tokens=1, kv="held"), at_s)
        journey = self._journeys[ask.request_id] = _Journey(ask, decode, self, state)
        self.look()
        return journey

    def release(self, number: int, at_s: float) -> None:
        self.engine.release(number, at_s)
        self.look()

    def _begun(self, at_s: float) -> None:
        if self._end_s is None:
            return
        self._starts[self.engine.scheduler.progress.completed + 1] = at_s
        if len(self._starts) > _MOST_STARTS:
            running = self.engine.scheduler.running
            oldest = min((each.first_step for each in running), default=max(self._starts))
            self._starts = {step: start_s for step, start_s in self._starts.items() if step >= oldest}

    def _finished(self, state: RequestState, at_s: float) -> None:
        journey = self._journeys.pop(state.request_id)
        journey.begun_s, journey.computed_s = self._starts[state.first_step], at_s
        journey.decode.computed(journey, at_s)


class _Decode(_Timed):
    """A replica as its balancer sees it: a request is open from its arrival to its last token."""

    def __init__(
        self,
        engine: BlockEngine,
        link: KvLink,
        writes: bool,
        numbers: "count[int]",
        choose: Callable[[], _Prefill],
    ) -> None:
        super().__init__(engine)
        self._link, self._writes, self._numbers, self._choose = link, writes, numbers, choose
        self._journeys: dict[int, _Journey] = {}
        self._unfinished = 0

    @property
    def open_requests(self) -> int:
        return self._unfinished

    def add(
        self, at_s: float, input_tokens: int, output_tokens: int, shared_tokens: int, chain: Chain = ()
    ) -> int:
        """Raises ValueError for a request that can never be served."""
        number = next(self._numbers)
        blocks = chain or tuple(range(shared_tokens // self.engine.block_size))
        ask = GenerateRequest(number, input_tokens, output_tokens, blocks, kv="remote")
        self.engine.check(ask)
        journey = self._journeys[number] = self._choose().compute(ask, self, at_s)
        self._unfinished += 1
        if self._writes:
            self._expect(journey, at_s)
        return number

    def seen(self, number: int) -> tuple[float | None, float | None, int, bool, int]:  # type: ignore[override]
        """Progress as of any replica, and the tokens that its prefill engine had cached (-1: not begun)."""
        journey = self._journeys[number]
        state, cached = journey.decoding, journey.computing.cached_tokens
        if state is None:
            return None, None, 0, False, cached
        if state.finished:
            del self._journeys[number]
        return state.first_token_s, state.last_token_s, state.emitted, state.finished, cached

    def computed(self, journey: _Journey, at_s: float) -> None:
        """The prompt is computed: its KV is read from now on, or the rest of it written."""
        if self._writes:
            self._transfer(journey)
        else:
            self._expect(journey, at_s)

    def _expect(self, journey: _Journey, at_s: float) -> None:
        journey.decoding = self.engine.add(journey.ask, at_s)
        self.look()

    def _begun(self, at_s: float) -> None:
        for state in self.engine.loading():
            journey = self._journeys[state.request_id]
            journey.taken_s = at_s
            self._transfer(journey)

    def _transfer(self, journey: _Journey) -> None:
        """Carry the KV over as soon as it is computed and has blocks to go to."""
        computed_s, taken_s, state = journey.computed_s, journey.taken_s, journey.decoding
        if computed_s is None or taken_s is None or state is None:
            return
        if self._writes:
            end_s = self._link.written_s(journey.begun_s, computed_s, taken_s, state.tokens_to_load)
        else:
            end_s = self._link.end_s(taken_s, state.tokens_to_load)
        self.engine.kv_arrived(state.request_id, end_s)
        self.look()
        journey.prefill.release(state.request_id, end_s)

    def _finished(self, state: RequestState, at_s: float) -> None:
        self._unfinished -= 1
