# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Prediction against measurement
#
# `python -m loadgen predict` answers from the engine model alone, with an interval from the uncertainty of
# its constants. Does the run agree? `LOADGEN_RUN` names it; the prediction uses the run's configuration.

# %% tags=["parameters"]
import json
import os
import subprocess
import sys
from pathlib import Path

import analysis

EXAMPLE = Path(analysis.__file__).parents[1] / "tests" / "data" / "golden_run"
RUN = os.environ.get("LOADGEN_RUN", str(EXAMPLE))

# %%
run = analysis.load_run(RUN)
ROOT = Path(analysis.__file__).parents[1]


def predicted(*words):
    """The engine model's answer to the run's configuration and `words`."""
    config = str((run.path / "config.yaml").resolve())
    command = [sys.executable, "-m", "loadgen", "predict", "--json", "--config", config, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


# Ten virtual hours, whatever the budget of the run; a prediction ignores the search.
answer = predicted("search=virtual", "cluster.session=fake")

# %% [markdown]
# ## Capacity

# %%
simulated = "SIMULATED" if run.verdict and run.verdict.experiment.is_modelled else "measured"
print(
    f"{simulated:>9}: {run.capacity.qps_per_node if run.capacity else 'no capacity is claimed'} QPS per node"
)
if run.capacity and run.capacity.by_noise:
    print(f"           sampling noise of this run alone: {run.capacity.by_noise}")
q = answer["capacity"]["qps_per_node"] if answer["capacity"] else {}
print("predicted:", f"{q['value']:.2f} QPS per node, 95 % [{q['low']:.2f}, {q['high']:.2f}]" if q else "none")

# %% [markdown]
# A measured interval is the run's sampling noise. The predicted one is wide because nothing in it was
# measured on the hardware. A simulated run has the same constants, and its interval joins their uncertainty
# with its sampling noise, so that the two should agree. After `python -m analysis calibrate` it narrows.
