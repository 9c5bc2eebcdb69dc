# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Two layouts: one TP8/EP8 replica per node, or two of TP4/EP4
#
# Which layout serves more within the same bounds, and how sure is that? `LOADGEN_RUN` and `LOADGEN_RUN_B`
# name the two runs; the two parts of `python -m loadgen compare b.layout=dp2_tp4_ep4` got the same
# requests, which makes their ratio twice as sharp.

# %% tags=["parameters"]
import os
from pathlib import Path

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))
RUN_B = os.environ.get("LOADGEN_RUN_B")

# %%
# Without a second run the tables and figures show the first alone.
runs = analysis.load_runs(*filter(None, (RUN, RUN_B)))
analysis.capacity_table(runs).to_pandas().set_index("run").T

# %% [markdown]
# ## The ratio, beside the published one
#
# DigitalOcean's report on Character.ai (2026-01-13,
# <https://www.digitalocean.com/blog/technical-deep-dive-character-ai-amd>) says "~45 % better" QPS for
# DP2/TP4/EP4 over DP1/TP8/EP8, at "similar latency and concurrency" near 64 in flight: a closed loop,
# without bounds or an interval. Its own chart reads nearer to 2.0. That is another question than the
# highest open-loop rate within p90 bounds, so the two need not agree.

# %%
PUBLISHED, PUBLISHED_OF = 1.45, [(1, 8), (2, 4)]
found = None
if len(runs) < 2:
    print("no ratio: LOADGEN_RUN_B names no second run")
else:
    try:
        found = analysis.compare(*runs)
    except analysis.RunError as reason:
        print(reason)

# %%
if found:
    print(f"B / A = {found.estimate} (95 %, {found.how})")
    layouts = [run.config.layout for run in runs]
    if [(layout.replicas_per_node, layout.tensor_parallel) for layout in layouts] == PUBLISHED_OF:
        low, high = found.estimate.ends
        inside = low <= PUBLISHED <= high
        print(f"published {PUBLISHED}: {'inside' if inside else 'outside'} of the interval")
    else:
        print(f"published {PUBLISHED} is of two TP4 replicas over one of TP8: not of these runs")

# %%
# The two sides of a comparison are drawn with its ratio of the same requests.
compared = None
if found:
    subject = analysis.load_study(runs[0].path.resolve().parent) if found.paired else runs
    compared = analysis.plot_compare(subject)
compared

# %% [markdown]
# On a simulated engine the interval is the sampling noise of the two runs alone. Which layout is better
# depends on constants that were never measured on this hardware: `python -m loadgen predict
# matrix.layout=[dp1_tp8_ep8,dp2_tp4_ep4]` draws them too, and its interval of the ratio is the honest one
# before a run on real nodes. docs/evidence.md says what they rest on and why two TP4 come out ahead.
