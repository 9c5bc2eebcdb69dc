"""Measurement windows over a target; the sweep, the probe and the acceptance test."""
