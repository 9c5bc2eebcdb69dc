"""vLLM's engine, compiled: KV blocks, scheduling rules, steps and data-parallel ranks."""
