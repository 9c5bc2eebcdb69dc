"""A Ray session: start, placement, limits."""
