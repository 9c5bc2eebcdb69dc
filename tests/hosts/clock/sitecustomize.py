"""Sets the wall clock of the Python processes of a host wrong, which time namespaces cannot.

Python imports this file by its name from the host's PYTHONPATH.
"""

import os
import time

SHIFT_NS = int(float(os.environ.get("MAXQPS_TEST_CLOCK_S", "0")) * 1e9)
_true_ns = time.time_ns

if SHIFT_NS:
    time.time_ns = lambda: _true_ns() + SHIFT_NS
    time.time = lambda: time.time_ns() / 1e9
