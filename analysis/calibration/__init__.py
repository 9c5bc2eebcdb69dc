"""Constants of the engine model from observed steps."""
