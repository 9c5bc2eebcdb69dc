"""What numbers mean: records, metrics, capacity, validity, runs. Imports neither Ray nor HTTP nor vLLM."""

from analysis.runs import Run, RunError, load_run

__all__ = ["Run", "RunError", "load_run"]
