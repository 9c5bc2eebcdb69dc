"""vLLM's scheduling rules, block by block."""
