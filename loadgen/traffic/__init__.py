"""Planned requests: the users, the arrival times, and the tokens of each request."""
