"""The quality gate's statistics: divergences between two configurations, their intervals, the verdict."""
