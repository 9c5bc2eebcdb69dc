"""Columns of a request row about the gaps between its tokens: the gaps, and the figures that bounds need."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.stats.quantiles import Floats, quantile
from conf.specs.bounds import Slo, metric_of
from loadgen.fleet.sse import Exchange

MOST_US = np.iinfo(np.int32).max


@dataclass(frozen=True, slots=True)
class GapRecord:
    """The gaps that rows keep: all if `kept`, their quantile `within` an answer, the number over `most_ms`.

    None disables a figure. They are made where the gaps are, since reports on a run carry no lists.
    """

    kept: bool = True
    within: float | None = None
    most_ms: float | None = None

    @classmethod
    def from_bounds(cls, slo: Slo, kept: bool) -> "GapRecord":
        """The gaps with the figures that bounds need."""
        own = any(metric_of(limit) == "itl" for limit in slo.limits)
        return cls(kept, slo.itl_within if own else None, slo.strictest_ms("itl_pooled"))

    @property
    def figures(self) -> "GapRecord":
        """The same without the gaps themselves, as reports carry them."""
        return replace(self, kept=False)

    def columns(self, exchanges: Sequence[Exchange], scale: float) -> dict[str, Any]:
        """The columns `itl_us`, `own_itl_us`, `gaps`, `gaps_over`: null in flight or if disabled."""
        unknown = [None] * len(exchanges)
        columns: dict[str, Any] = dict.fromkeys(("itl_us", "own_itl_us", "gaps", "gaps_over"), unknown)
        if self.kept:
            columns["itl_us"] = _gaps(exchanges, scale)
        if self.within is None and self.most_ms is None:
            return columns
        each = [_ended(exchange, scale) for exchange in exchanges]
        if self.within is not None:
            columns["own_itl_us"] = [_own_us(gaps, self.within) for gaps in each]
        if self.most_ms is not None:
            most_us = 1e3 * self.most_ms
            columns["gaps"] = [None if gaps is None else len(gaps) for gaps in each]
            columns["gaps_over"] = [
                None if gaps is None else int(np.count_nonzero(gaps > most_us)) for gaps in each
            ]
        return columns


EVERY_GAP = GapRecord()
"""Rows keep all gaps, and no figure of them."""
NO_GAPS = GapRecord(kept=False)
"""Rows keep nothing of gaps."""


def _ended(exchange: Exchange, scale: float) -> Floats | None:
    """The gaps of an answer on the run's clock; None while it is in flight."""
    if exchange.end_ns is None:
        return None
    return np.frombuffer(exchange.gaps_us, dtype=np.int32) * np.float64(scale)


def _own_us(gaps_us: Floats | None, within: float) -> int | None:
    gap_us = None if gaps_us is None else quantile(gaps_us, within)
    return None if gap_us is None else min(round(gap_us), MOST_US)


def _gaps(exchanges: Sequence[Exchange], scale: float) -> pa.Array:
    """The gaps of each request as one list column, their bytes copied once; null while in flight."""
    ends = np.cumsum([0, *(len(exchange.gaps_us) for exchange in exchanges)], dtype=np.int32)
    gaps_us = np.frombuffer(b"".join(exchange.gaps_us for exchange in exchanges), dtype=np.int32)
    if scale != 1:
        gaps_us = np.minimum(np.rint(gaps_us * scale), MOST_US).astype(np.int32)
    open_ = np.array([exchange.end_ns is None for exchange in exchanges], dtype=np.bool_)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(gaps_us), mask=pa.array(open_))
