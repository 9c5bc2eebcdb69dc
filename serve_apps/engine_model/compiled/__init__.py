"""The scheduling rules once more, compiled, at constant cost per step."""
