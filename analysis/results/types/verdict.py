"""The verdicts that answer one question."""

from analysis.results.types.prediction_verdict import PredictionVerdict
from analysis.results.types.run_verdict import RunVerdict
from analysis.results.types.study_verdict import StudyVerdict

Verdict = RunVerdict | StudyVerdict | PredictionVerdict
"""A verdict on one question; a grid has one for every cell."""
