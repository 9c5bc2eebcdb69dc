"""A run while it goes on: what its events add up to, on a terminal, in a browser, and as metrics."""
