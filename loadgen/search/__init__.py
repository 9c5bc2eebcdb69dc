"""Pure rules of the next window."""
