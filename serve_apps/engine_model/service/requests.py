"""One run of requests, and the replicas that serve it; knows no engine and no clock."""

from collections.abc import Sequence
from dataclasses import dataclass

from serve_apps.engine_model.compiled.fast_engine import Floats, Ints
from serve_apps.engine_model.service.balancer import Balance, Loss
from serve_apps.engine_model.service.prefixes import Prefixes


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in order of arrival: when each is sent, and its prompt, output and shared tokens (`asked`).

    Where they share more than one prefix, `prefixes` takes the place of the shared tokens. Requests before
    `from_s` fill the caches and nothing else: they have no times (nan).
    """

    sent_s: Floats
    asked: Sequence[Ints]
    prefixes: Prefixes | None = None
    from_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Replicas:
    """Replicas of one kind behind a balancer; `seed` draws their noise and the balancer's random choices."""

    count: int = 1
    balance: Balance = Balance()  # noqa: RUF009  # frozen
    seed: int = 0
    loss: Loss | None = None
