"""Without vLLM (make test-vllm installs it) there is nothing to compare with."""

from importlib.util import find_spec

NEED_VLLM = ["test_emulated.py", "test_emulated_pair.py", "test_same_moves.py", "test_same_steps.py"]
collect_ignore = [] if find_spec("vllm") else NEED_VLLM
