"""The same questions to the engine model."""
