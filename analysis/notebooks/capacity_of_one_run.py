# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # The capacity of one run, and why to believe it
#
# The number first, then its evidence: the windows, the path of the search, and the proof that the load
# generator kept up. Choose a run with the environment variable `LOADGEN_RUN`; without it a small recorded
# run is shown.

# %% tags=["parameters"]
import os
from pathlib import Path

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))

# %%
run = analysis.load_run(RUN)
analysis.capacity_table([run]).to_pandas().set_index("run").T

# %% [markdown]
# ## Latency against load
#
# A request that failed is infinitely late, so that it stays in every quantile. Void windows are crossed
# out: they are neither pass nor fail.

# %%
analysis.plot_latency(run)

# %%
analysis.percentiles(run, "tpot").to_pandas()

# %% [markdown]
# ## How it was found

# %%
analysis.plot_search(run)

# %% [markdown]
# ## Did the load generator keep up?
#
# Latency counts from the planned instant, so a late client would look like a slow server. Its lateness is the
# send lag; above its bound the window is void.

# %%
analysis.plot_client_lag(run)

# %% [markdown]
# ## Everything that the verdict rests on

# %%
print(run.answer())

# %% [markdown]
# ## The same windows, another bound
#
# All rows are there, so that another bound needs no new run, as long as its capacity lies within the rates
# that were offered.

# %%
try:
    stricter = analysis.rejudge(run, "slo.tpot_p90_ms=80")
    print(f"{stricter.reason}: certified {stricter.capacity.qps_per_node.certified:.3g} QPS per node")
except analysis.RunError as reason:
    print(reason)
