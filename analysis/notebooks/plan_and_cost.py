# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Plan and cost
#
# Nodes for a demand, the rule that asks for them, the cost of a day, and the inputs that matter most.
# `LOADGEN_RUN` names the run; the demand below is yours to change.

# %% tags=["parameters"]
import os
from pathlib import Path

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))
PEAK_QPS = 200.0
PEAK_OVER_MEAN = 1.8
NODE_HOUR_USD = 16.0  # an example of a price, not a quote

# %%
run = analysis.load_run(RUN)
demand = analysis.Demand(peak_qps=PEAK_QPS, peak_factor=PEAK_OVER_MEAN)
care = analysis.Margins(headroom=0.15, spare_nodes=1, node_hour_usd=NODE_HOUR_USD)
plan = analysis.plan(run, demand, care)
print(plan.answer())

# %% [markdown]
# ## Nodes against demand

# %%
analysis.plot_plan(plan)

# %% [markdown]
# ## The cost of certainty
#
# The same demand planned with the low end of the interval, with the certified rate and with the estimate,
# which is too high as often as too low. A longer measurement can save the difference.

# %%
for basis in ("low", "certified", "estimate"):
    one = analysis.plan(
        run, demand, analysis.Margins(basis=basis, spare_nodes=1, node_hour_usd=NODE_HOUR_USD)
    )
    print(f"{basis:>9}: {one.nodes} nodes, ${24 * one.nodes * NODE_HOUR_USD:,.0f} per day")

# %% [markdown]
# ## A fleet of 30,000 messages per second
#
# The rate of Character.ai's service, on this run's workload: without its conversations and their cache
# hits, which serve several times as many per node.

# %%
large = analysis.plan(run, analysis.Demand(peak_qps=30_000.0), analysis.Margins(spare_nodes=10))
print(large.answer())
