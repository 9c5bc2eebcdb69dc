"""The same scheduling rules at constant cost per step, compiled."""
