"""Predictions: a sweep's, a probe's and a benchmark's questions, answered by the engine model."""
