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

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))

# %% [markdown]
# ## The window that is furthest over a bound, or nearest to one

# %%
run = analysis.load_run(RUN)
worst = analysis.over_bound(run)
if worst.p90_ms <= worst.bound_ms:
    print("No window of this run has a p90 over its bound. The nearest is:")
print(worst)

# %% [markdown]
# ## The requests over the bound
#
# A request over TPOT shared its steps with other requests' prefills: look at how many arrived while it was
# answered. One over TTFT waited in the queue: look at the arrivals shortly before it. Arrivals are all
# requests that were sent, also after the window and between windows.

# %%
rows = worst.requests.to_pandas()
shown = {"requests": ("seq", "count"), "answered": ("arrivals", "count")}
shown |= {"median_ms": (f"{worst.limit}_ms", "median"), "mean_arrivals": ("arrivals", "mean")}
counted = rows.groupby("over").agg(**shown).rename({False: "within the bound", True: "over the bound"})
print(counted.round(1))

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
rows.groupby("replica_id", observed=True)[f"{worst.limit}_ms"].quantile([0.5, 0.9, 0.99]).unstack()
