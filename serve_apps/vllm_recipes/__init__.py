"""Flags and environment of vLLM per model, layout and version, and the rules that refuse."""
