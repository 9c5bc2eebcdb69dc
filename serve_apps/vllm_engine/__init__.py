"""Real vLLM behind Ray Serve."""
