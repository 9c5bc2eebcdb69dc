# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # The request table in SQL
#
# Every planned request is one row of `requests/*.parquet`, also a failed one, for any reader of Parquet.
# A failed request has infinite latencies; a latency that does not apply is null. `docs/columns.md` has
# every column.

# %% tags=["parameters"]
import os
import tempfile
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))

# %%
run = analysis.load_run(RUN)
windows = str(run.path / "windows.parquet")
folder = run.path / "requests"
if not run.is_collected:
    # A run that was killed: its file as it would have been written.
    folder = Path(tempfile.mkdtemp())
    pq.write_table(run.requests(latencies=True), folder / "part-000.parquet")
requests = str(folder / "**" / "*.parquet")
db = duckdb.connect()

# %% [markdown]
# ## p50, p90 and p99 per window
#
# Void windows are among them: `windows.parquet` says which. Where a quantile lies among failures,
# `quantile_cont` prints `nan`: read it as infinite.

# %%
db.execute(
    """
    select window_index, count(*) as requests, count(*) filter (status <> 'ok') as failed,
           quantile_cont(ttft_ms, [0.5, 0.9, 0.99]) as ttft_ms,
           quantile_cont(tpot_ms, [0.5, 0.9, 0.99]) as tpot_ms
    from read_parquet($requests) where phase = 'window' group by window_index order by window_index
    """,
    {"requests": requests},
).df()

# %% [markdown]
# The same by this project's own definitions, which recompute every latency from the raw offsets:

# %%
analysis.percentiles(run, "ttft").to_pandas()

# %% [markdown]
# ## Requests over a bound, joined with what the window was

# %%
db.execute(
    """
    select w.index as window_index, w.rate_qps_per_node, w.valid,
           avg((r.ttft_ms > $ttft)::double) as over_ttft, avg((r.tpot_ms > $tpot)::double) as over_tpot
    from read_parquet($requests) r join read_parquet($windows) w on r.window_index = w.index
    where r.phase = 'window' group by all order by window_index
    """,
    {
        "requests": requests,
        "windows": windows,
        "ttft": run.config.slo.ttft_p90_ms,
        "tpot": run.config.slo.tpot_p90_ms,
    },
).df()

# %% [markdown]
# ## Gaps between tokens
#
# `itl_us` is a list of the gaps between reads that carried output, in microseconds. It lacks the gaps that a
# failed answer never sent; `analysis.percentiles(run, "itl")` counts it as infinite.

# %%
db.execute(
    """
    select window_index, quantile_cont(gap, [0.5, 0.9, 0.99]) as itl_us, count(*) as gaps
    from (select window_index, unnest(itl_us) as gap from read_parquet($requests) where phase = 'window')
    group by window_index order by window_index
    """,
    {"requests": requests},
).df()

# %% [markdown]
# Units and meanings travel in the file itself:

# %%
schema = run.requests(columns=["due_ns", "first_token_offset_ns", "cached_tokens"]).schema
for field in schema:
    meta = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    print(f"{field.name:<24} {meta.get('unit', ''):<8} {meta.get('doc', '')}")
