"""Time of one engine step, from architecture and constants."""
