"""Stored rows of requests and time series, and the latencies that follow from them."""
