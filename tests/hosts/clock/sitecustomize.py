"""Sets the wall clock of the Python processes of a host wrong, and again while they run.

Time namespaces cannot shift it. Python imports this file by its name from the host's PYTHONPATH; the file
that MAXQPS_TEST_CLOCK names has the nanoseconds by which the clock is ahead, as a number of eight bytes.
"""

import mmap
import os
import struct
import time

if _path := os.environ.get("MAXQPS_TEST_CLOCK"):
    with open(_path, "rb") as _file:  # noqa: PTH123  each process of a host starts here
        _ahead = mmap.mmap(_file.fileno(), 8, access=mmap.ACCESS_READ)
    _true_ns = time.time_ns
    time.time_ns = lambda: _true_ns() + struct.unpack("q", _ahead)[0]
    time.time = lambda: time.time_ns() / 1e9
