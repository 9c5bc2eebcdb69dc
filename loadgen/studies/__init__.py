"""Several runs that answer one question: comparison, grid, repeats, calibration probes, the published
benchmark.
"""
