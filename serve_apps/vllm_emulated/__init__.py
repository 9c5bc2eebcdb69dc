"""Real vLLM whose steps take modelled time."""
