"""Request rows of a closed loop that the engine model has played to its end."""

from typing import Any

import numpy as np
import pyarrow as pa

from analysis.rows import records
from loadgen.fleet.rows import plan_table
from loadgen.traffic.lengths import Ints
from loadgen.traffic.processes import Floats
from loadgen.traffic.schedule import NS, ArrivalSchedule


def played_rows(
    schedule: ArrivalSchedule, sent_s: Floats, first_s: Floats, last_s: Floats, cached_tokens: Ints
) -> pa.Table:
    """Rows of schema `PROGRESS` for a closed loop that has ended; a request is due when it is sent."""
    due_ns = np.rint(sent_s * NS).astype(np.int64)
    first, last = (pa.array(np.rint(at * NS).astype(np.int64) - due_ns) for at in (first_s, last_s))
    count = len(schedule)
    prompt = pa.array(schedule.input_tokens, pa.int32())
    columns: dict[str, Any] = {
        **{name: plan_table(schedule).column(name) for name in records.PLAN.names},
        "client_id": pa.array(np.zeros(count, dtype=np.int16)),
        "due_ns": pa.array(due_ns),
        "status": pa.repeat(records.OK, count),
        "replica_id": pa.repeat("0", count),
        "send_offset_ns": pa.array(np.zeros(count, dtype=np.int64)),
        "first_token_offset_ns": first,
        "last_token_offset_ns": last,
        "end_offset_ns": last,
        "prompt_tokens": prompt,
        "cached_tokens": pa.array(cached_tokens, pa.int32()),
        "output_tokens": pa.array(schedule.output_tokens, pa.int32()),
    }
    return pa.table(records.empty(records.PROGRESS, count) | columns, schema=records.PROGRESS)
