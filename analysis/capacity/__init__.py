"""From counted windows to the posterior of the capacity."""
