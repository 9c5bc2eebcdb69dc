"""Without vLLM, which `make vllm` installs, there is nothing to compare with."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]
