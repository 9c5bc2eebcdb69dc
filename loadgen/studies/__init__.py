"""Several runs that answer one question: comparison, grid, repeats, calibration, the published benchmark."""
