"""Replicas behind a balancer on one virtual clock: hours of service in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serve_apps.engine_model.cost.node import PREFILL
from serve_apps.engine_model.engine import kinds, state
from serve_apps.engine_model.engine.kinds import EngineKind, Ints
from serve_apps.engine_model.engine.native import NONE, native
from serve_apps.engine_model.service import loop
from serve_apps.engine_model.service.balancer import FEWER, GIVEN, Balance, Choice, Loss, choice
from serve_apps.engine_model.service.prefixes import Pieces

Floats = NDArray[np.float64]
PREFILL_STREAM = 1 << 20
"""Added to the seed for choices among prefill engines: they are not those among decode engines."""
PREFILL_BALANCE = Balance("pow2")
"""The one of two prefill engines, drawn at random, with fewer requests in flight, as Serve's handles do."""
STANDSTILL = (
    "prefill and decode engines wait for each other's KV blocks for ever, as vLLM's would; "
    "raise num_gpu_blocks, or use layout.transfer_mode=read"
)
SPARE_RUNS = 4
"""Runs of blocks beside those of the pieces that a request shares, of which it may need room for."""
SUMS = (
    *("decode_tokens", "prefill_tokens", "context_tokens", "attention_pairs", "sequences"),
    "kv_token_seconds",
)
"""Sums over all steps, as `Batch` counts them; and KV in use, in tokens of whole blocks, times how long."""


class Times(NamedTuple):
    """Times of requests, in order of their arrival; seconds on the virtual clock.

    `replica` served it; `cached_tokens` of its prompt were in the prefix cache. `work` has the steps of all
    engines, their busy seconds and `SUMS`; of engines that only compute prompts with `PREFILL` before the
    name. `queue_s` is how long each waited to be first scheduled once the scheduler had seen it, None on a
    split node, where it waits twice. `token_s` are the times of all tokens, request by request, where they
    are kept.
    """

    sent_s: Floats
    first_token_s: Floats
    last_token_s: Floats
    cached_tokens: Ints
    replica: Ints
    work: dict[str, float]
    queue_s: Floats | None = None
    token_s: Floats = np.zeros(0)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival: when each is sent, and its prompt, output and shared tokens (`tokens`).

    Where they share more than one prefix, `pieces` take the place of the shared tokens. Requests before
    `from_s` fill the caches and nothing else: they have no times (nan).
    """

    sent_s: Floats
    tokens: Sequence[Ints]
    pieces: Pieces | None = None
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of one kind behind a balancer; `seed` draws their noise and the balancer's random choices."""

    count: int = 1
    balance: Balance = Balance()  # noqa: RUF009  # frozen
    seed: int = 0
    loss: Loss | None = None


class Service:
    """`replicas` of a kind, of a split node its decode engines, on the clock of `loop`.

    There is room for so many `requests`, and for so many runs of KV blocks. With `tokens`, their number, the
    time of every one is kept, from row 1 of `arrays.tokens` on; row 0 is for those that no client sees.
    """

    def __init__(
        self, kind: EngineKind, replicas: Replicas, requests: int, runs: int, tokens: int = 0
    ) -> None:
        self.replicas, self.kind, prefill = replicas, kind, kind.prefill
        sides = [(kind, replicas.count)]
        if prefill is not None:
            nodes = replicas.count // prefill.decode_per_node
            sides.append((prefill.engine, nodes * prefill.per_node))
        self._counts = [count for _, count in sides]
        self.rows_each = len(sides)  # of a request: one on each side
        seeds = range(replicas.seed, replicas.seed + sum(self._counts))
        self.arrays, self._noises = kinds.empty_arrays(sides, seeds)
        rows = requests * self.rows_each
        self._set_balancers(rows)
        self.arrays.make_requests(rows)
        self.arrays.make_books(min(int(self.arrays.engines["blocks"].sum()), runs), runs)
        self.arrays.make(tokens=1 + tokens if tokens else 0)
        service = self.arrays.service
        service["coupled"] = prefill is not None
        if prefill is not None:
            service["token_s"], service["latency_s"] = prefill.seconds.per_token_s, prefill.seconds.latency_s
            service["last_share"], service["writes"] = prefill.seconds.last_share, prefill.writes
        self._pieces: list[Ints] = []  # the arrays have their addresses
        self.count, self._tokens = 0, int(tokens > 0)

    def _set_balancers(self, most_open: int) -> None:
        """A balancer for each side, over engines without requests."""
        counts, replicas, total = self._counts, self.replicas, sum(self._counts)
        self.arrays.make(balancer=len(counts), open=total, replicas_with=(len(counts), 2 + most_open))
        self.arrays.set(heap=np.arange(total, dtype=np.int64))
        self.arrays.replicas_with[:, 0] = counts
        balancer, groups = self.arrays.balancer, self.arrays.groups
        balancer["first"], balancer["count"] = np.cumsum(counts) - counts, counts
        balancer["gone"] = balancer["lost"] = NONE
        balancer["load_factor"], balancer["mode"][1:] = replicas.balance.load_factor, FEWER
        if replicas.loss is not None:
            balancer["lost"][0], balancer["lost_s"][0] = replicas.loss
        groups["side"] = np.repeat(range(len(counts)), counts)
        groups["place"], groups["due_s"] = range(total), np.inf

    def append(self, prompt: Ints, output: Ints, names: Ints, ends: Ints) -> None:
        """More requests, and the pieces of each prompt that others share, a row for each level (`Pieces`)."""
        self.kind.refuse_impossible("a request", prompt, output)
        first = self.count * self.rows_each
        each = np.repeat(np.arange(len(prompt)), self.rows_each)
        blocks = np.minimum(ends, prompt) // self.kind.spec.block_size
        levels = len(blocks) if blocks.any() else 0
        pieces = np.ascontiguousarray(np.stack([names[:levels].T, blocks[:levels].T], axis=-1), np.int64)
        self._pieces.append(pieces)
        requests = self.arrays.requests[first : first + len(each)]
        requests["serial"] = np.arange(first, first + len(each))
        requests["prompt"], requests["output"] = prompt[each], output[each]
        requests["shares"], requests["pieces"] = pieces.ctypes.data + each * pieces.strides[0], levels
        if self._tokens:
            requests["token"][:: self.rows_each] = self._tokens + np.cumsum(output) - output
            self._tokens += int(output.sum())
            if self._tokens > len(self.arrays.tokens):  # compiled code writes wherever it is told
                raise MemoryError("no room for the times of so many tokens")
        if self.kind.prefill:
            decode, prefill = requests[::2], requests[1::2]
            decode["mate"], prefill["mate"] = prefill["serial"], decode["serial"]
            decode["kv"], prefill["kv"] = state.REMOTE, state.HELD
            prefill["output"] = 1
        self.count += len(prompt)

    def send(self, numbers: Ints, due_s: Floats, routed: Choice, until_s: float, first: int = 0) -> None:
        """Send these requests, and serve up to `until_s`, arrivals at that instant included.

        The balancer has sent `first` requests before. Raises ValueError at a standstill.
        """
        columns = np.zeros((4, len(numbers)), np.int64)
        for row, column in enumerate((routed.one, routed.other)):
            columns[row, : len(column)] = column
        if self.kind.prefill:
            seed = self.replicas.seed + PREFILL_STREAM
            columns[2:] = choice(PREFILL_BALANCE, self._counts[1], seed, due_s, first=first)[1:3]
        rows = numbers * self.rows_each
        self.arrays.set(due=rows, due_s=due_s, choices=columns, owners=routed.owners)
        self.arrays.balancer["mode"][0], self.arrays.service["arrived"] = routed.mode, 0
        while (why := loop.run(self.arrays.address, until_s)) == loop.OUT_OF_NOISE:
            for g in np.flatnonzero(self.arrays.groups["drawn"] == self.arrays.noise.shape[1]).tolist():
                self._noises[g].draw(self.arrays, g)
        if why == loop.STANDSTILL:
            raise ValueError(STANDSTILL)

    def work(self, side: int) -> dict[str, float]:
        """The work of the engines of a side."""
        mine, prefix = self.arrays.groups["side"] == side, PREFILL * side
        groups = self.arrays.groups[mine]
        engines = self.arrays.engines[np.repeat(mine, self.arrays.groups["width"])]
        work = {"steps": int(groups["steps"].sum()), "busy_s": float(groups["busy_s"].sum())}
        work |= {name: engines[name].sum().item() for name in SUMS}
        return {prefix + name: value for name, value in work.items()}


def serve(
    kind: EngineKind,
    requests: Requests,
    replicas: Replicas = Replicas(),  # noqa: B008  # frozen
    concurrency: int = 0,
    tokens: bool = False,
) -> Times:
    """All requests to their end, each sent at its time, or `concurrency` of them in flight.

    Requests before `requests.from_s` only fill caches. With `tokens` the time of each token is kept. Raises
    ValueError for a request that can never be served, a standstill of a split node, and for limits of the
    queue, whose refusals it does not model.
    """
    spec = kind.spec
    if spec.max_num_queued_reqs is not None or spec.max_num_queued_tokens is not None:
        raise ValueError(
            "the engine model does not predict refusals: leave out engine.max_num_queued_reqs and "
            "engine.max_num_queued_tokens, or measure with sweep or probe"
        )
    prompt, output, *_ = (np.ascontiguousarray(column, np.int64) for column in requests.tokens)
    count = len(prompt)
    due_s = np.zeros(count) if concurrency else np.ascontiguousarray(requests.sent_s, np.float64)
    names, ends, session = requests.pieces or Pieces(
        np.zeros((1, count), np.int64), np.array([requests.tokens[2]])
    )
    routed = choice(replicas.balance, replicas.count, replicas.seed, due_s, session, replicas.loss)
    split = kind.prefill is not None
    room = count * (1 + split) * (len(names) + SPARE_RUNS) + 64
    while True:
        service = Service(kind, replicas, count, room, int(output.sum()) if tokens else 0)
        service.append(prompt, output, names, ends)
        shared, one_way = service.arrays.service, routed.mode == GIVEN or replicas.count == 1
        shared["closed"] = concurrency
        shared["coupled"] = split or (concurrency > 0 and replicas.count > 1)
        shared["apart"] = one_way and not split and not concurrency and service.kind.width == 1
        if requests.pieces is not None and not concurrency:
            shared["from_s"] = requests.from_s
        try:
            service.send(np.arange(count), due_s, routed, np.inf)
        except MemoryError:  # prompts were cut in more pieces than was thought
            room *= 2
        else:
            return _times(service)


def serve_closed(kind: EngineKind, concurrency: int, lengths: Sequence[Ints], seed: int = 0) -> Times:
    """A closed loop over one engine; `lengths`: prompt, output and shared tokens."""
    requests = Requests(np.zeros(len(lengths[0])), lengths)
    return serve(kind, requests, Replicas(seed=seed), concurrency)


def _times(service: Service) -> Times:
    each, arrays = service.rows_each, service.arrays
    rows, prompts = arrays.requests[::each], arrays.requests[each - 1 :: each]
    before = rows["sent_s"] < arrays.service["from_s"]
    first_s, last_s = (np.where(before, np.nan, rows[name]) for name in ("first_s", "last_s"))
    return Times(
        rows["sent_s"].copy(),
        first_s,
        last_s,
        np.maximum(prompts["cached"], 0).astype(np.int64),
        rows["engine"] // service.kind.width,
        service.work(0) | (service.work(1) if each == 2 else {}),
        None if each == 2 else np.where(before, np.nan, rows["scheduled_s"] - rows["queued_s"]),
        arrays.tokens[1:],
    )


LATE_GAP = 0.99
"""The gap that stands for a request is its own 99 % quantile, as other tools print it."""


@native
def late_gap_s(ends: Any, share: Any) -> Any:
    """The quantile `share` of the gaps between the times `ends`, of which there are two or more.

    By numpy's `linear` rule; the largest gaps alone are kept, for there may be millions of requests.
    """
    count = len(ends) - 1
    place = share * (count - 1)
    low = int(place)
    largest = np.zeros(count - low)
    for i in range(count):
        gap = ends[i + 1] - ends[i]
        if i < len(largest) or gap > largest[0]:
            at = 0 if i >= len(largest) else len(largest) - 1 - i
            while at + 1 < len(largest) and largest[at + 1] < gap:
                largest[at] = largest[at + 1]
                at += 1
            largest[at] = gap
    if len(largest) == 1:
        return largest[0]
    return largest[0] + (place - low) * (largest[1] - largest[0])


@native
def late_gaps_s(tokens: Any, outputs: Any, share: Any) -> Any:
    """The same of every request, whose tokens lie one after the other; nan of one token alone."""
    gaps, at = np.full(len(outputs), np.nan), 0
    for i in range(len(outputs)):
        if outputs[i] > 1:
            gaps[i] = late_gap_s(tokens[at : at + outputs[i]], share)
        at += outputs[i]
    return gaps
