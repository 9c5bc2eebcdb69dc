# Every target makes .venv and installs what is missing; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

.PHONY: sweep test test-vllm check bench clean lock
.DEFAULT_GOAL := sweep

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxqps needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11")'
	@echo "installing into $(VENV): a few minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint requirements.lock --editable '.[dev]'
	touch $@

sweep: $(STAMP)  ## maximum QPS of one simulated MI325X node; more words with ARGS="key=value ..."
	$(BIN)/python -m loadgen sweep $(ARGS)

test: $(STAMP)  ## everything that needs neither a GPU nor vLLM
	$(BIN)/python -m pytest $(ARGS)

test-vllm: $(STAMP)  ## tests that need the CPU build of vLLM
	@echo "test-vllm: nothing needs vLLM yet (engine=vllm and engine=vllm_cpu come with a later version)"

check: $(STAMP)  ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP)  ## speed, as ratios; prints the machine's load beside every figure
	for file in tests/benchmarks/[a-z]*.py; do $(BIN)/python -m tests.benchmarks.$$(basename $$file .py) || exit 1; done

lock: $(STAMP)  ## pin what is installed now
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable > requirements.lock

clean:  ## the environment, caches and build leftovers; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
