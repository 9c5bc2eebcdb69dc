"""Quantiles, pooling and fits."""
