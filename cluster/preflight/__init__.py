"""Checks of nodes and GPUs before a run."""
