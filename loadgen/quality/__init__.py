"""The quality gate: the same questions to two configurations, and what they answer."""
