# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Anatomy of a violated bound
#
# At some rate p90 TTFT or p90 TPOT exceeds its bound. Which requests did so, when, on which replica, and in
# which state of the engine? `LOADGEN_RUN` names the run.

# %% tags=["parameters"]
import os
from pathlib import Path

import numpy as np

import analysis
from analysis.capacity import window_table
from analysis.capacity.window_counts import in_window
from analysis.results import tables
from analysis.rows import metrics
from analysis.stats.quantiles import quantile

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))

# %% [markdown]
# ## The window that is furthest over a bound, or nearest to one

# %%
run = analysis.load_run(RUN)
bounds_ms = {limit: getattr(run.config.slo, f"{limit}_p90_ms") for limit in ("ttft", "tpot")}
windows = [row for row in run.windows().to_pylist() if row["valid"] and row["requests"]]


def excess(row, limit):
    """p90 over its bound."""
    return row[f"{limit}_p90_ms"] / bounds_ms[limit]


known = [(row, limit) for row in windows for limit in bounds_ms if row[f"{limit}_p90_ms"] is not None]
if not known:
    raise analysis.NoData("no window of this run is valid and has a known p90")
worst, limit = max(known, key=lambda pair: excess(*pair))
if excess(worst, limit) <= 1:
    print("No window of this run has a p90 over its bound. The nearest is:")
print(
    f"window {worst['index']} at {worst['rate_qps_per_node']:.3g} QPS per node: p90 {limit.upper()} "
    f"{worst[f'{limit}_p90_ms']:.1f} ms, bound {bounds_ms[limit]:g} ms"
)

# %% [markdown]
# ## The requests over the bound
#
# A request over TPOT shared its steps with other requests' prefills: look at how many arrived while it was
# answered. One over TTFT waited in the queue: look at the arrivals shortly before it. Arrivals are all
# requests that were sent, also after the window and between windows.

# %%
rows = in_window(run.requests(window_index=worst["index"]), window_table.window(worst))
latency_ms = getattr(metrics, limit)(rows)
within, over = latency_ms <= bounds_ms[limit], latency_ms > bounds_ms[limit]


def instant_ns(table, offset):
    """An instant on the run's clock; nan if it never came."""
    return metrics.numbers(table, "due_ns") + metrics.numbers(table, offset)


sent_ns = instant_ns(run.requests(columns=("due_ns", "send_offset_ns")), "send_offset_ns")
sent_ns = np.sort(sent_ns[~np.isnan(sent_ns)])
start_ns, end_ns = (instant_ns(rows, offset) for offset in ("send_offset_ns", "last_token_offset_ns"))
meanwhile = np.searchsorted(sent_ns, end_ns) - np.searchsorted(sent_ns, start_ns, "right")
for name, mask in (("within", within), ("over", over)):
    answered = mask & metrics.status_in(rows, "ok")
    if answered.any():
        print(
            f"{name:>6} the bound: {mask.sum()} requests ({answered.sum()} answered), "
            f"median {quantile(latency_ms[mask], 0.5):.1f} ms, "
            f"{np.mean(meanwhile[answered]):.1f} arrivals during an answer"
        )
    elif mask.any():
        print(f"{name:>6} the bound: {mask.sum()} requests, none of them answered")

# %% [markdown]
# ## When: rolling p90, requests in flight and the engine's own count

# %%
analysis.plot_timeseries(run)

# %% [markdown]
# ## Where: replica by replica

# %%
try:
    balance = analysis.plot_replica_balance(run)
except analysis.NoData as reason:
    balance = reason
balance

# %%
tables.percentiles_of(rows, limit, by="replica_id").to_pandas()
