"""Frozen dataclasses of every verdict; `analysis.results.json_border` makes JSON of them and reads it."""
