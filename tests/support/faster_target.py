"""A virtual target that is faster by a known factor."""

from typing import Any

from serve_apps.engine_model import VirtualService


class Faster:
    """A service that is `factor` times as fast in everything."""

    def __init__(self, inner: VirtualService, factor: float) -> None:
        self._inner, self._factor = inner, factor

    def submit(self, key: int, at_s: float, *more: Any) -> None:
        self._inner.submit(key, at_s * self._factor, *more)

    def retract(self, after_s: float) -> None:
        self._inner.retract(after_s * self._factor)

    def advance(self, until_s: float) -> None:
        self._inner.advance(until_s * self._factor)

    def observe(self) -> list[Any]:
        scaled = lambda at_s: None if at_s is None else at_s / self._factor  # noqa: E731
        return [
            one._replace(first_token_s=scaled(one.first_token_s), last_token_s=scaled(one.last_token_s))
            for one in self._inner.observe()
        ]
