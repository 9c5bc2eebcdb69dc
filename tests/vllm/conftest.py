"""Without vLLM (make test-vllm installs it) there is nothing to compare with."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("vllm") else ["test_emulated.py", "test_same_steps.py"]
