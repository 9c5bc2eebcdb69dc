"""Quantiles, pooling and fits; knows no request."""
