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
# The newest with a CPU build is in the lock file; this is what ray[llm] of the pinned Ray asks for.
VLLM_OLDER ?= 0.29.0
FROM_DEBIAN = apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install chromium fish zsh

.PHONY: help sweep quick test test-stutter test-hosts test-vllm test-all browser vllm check bench notebook clean lock dist readme
.DEFAULT_GOAL := sweep

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "maxqps needs Python 3.11 or newer; call make PYTHON=/path/to/python3.11")'
	$(ENVIRONMENT) main $(VENV)
	@touch $@

help:  ## the targets, and what they do
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

sweep: $(STAMP) $(VENV)/.compiled  ## maximum QPS of one simulated MI325X node; more words with ARGS="key=value ..."
	$(BIN)/python -m loadgen sweep $(ARGS)

# Half a minute for a fresh clone, else a second: machine code is kept for each version of the engine's loops.
$(VENV)/.compiled: $(STAMP)
	@echo "compiling the engine's loops, once"
	@$(BIN)/python -m loadgen predict --quiet > /dev/null
	@touch $@

# Tests stand in three circles (quick, test, test-all), each in lanes that run side by side: a lane with Ray mostly
# waits, the others compute. The engine's loops, which a fresh clone compiles for half a minute, begin one of them.
SIDE_BY_SIDE = @$(MAKE) --no-print-directory --output-sync=target --jobs
PYTEST = @$(BIN)/python -m pytest -q -m
REAL := (ray or live)
FAST := not $(REAL) and not slow and not vllm
# About half of what computes; a folder that is not named here is among OTHERS.
ENGINE := $(addprefix tests/serve_apps/,engine_model routing simulated) \
	$(addprefix tests/loadgen/,drive fleet predict prompts run search traffic)
# What make check runs is not run again.
OTHERS := tests $(addprefix --ignore=,$(ENGINE) tests/vllm tests/test_layers.py)
DRAWN_OR_WHOLE := $(addprefix tests/,end_to_end analysis/figures analysis/report analysis/notebooks)
QUICK_OTHERS := $(OTHERS) $(addprefix --ignore=,$(DRAWN_OR_WHOLE))
quick: $(STAMP)  ## the inner loop, a minute: no Ray, no whole command, nothing drawn, no random examples, nothing slow
	$(SIDE_BY_SIDE)=2 quick-engine quick-others

quick-engine quick-others: $(STAMP)
	$(PYTEST) "$(FAST) and not hypothesis" $(if $(filter %-engine,$@),$(ENGINE),$(QUICK_OTHERS)) $(ARGS)

test: $(STAMP)  ## before a commit, five minutes: all but what is slow, with a whole sweep on Ray; or what ARGS="..." names
ifeq ($(ARGS),)
	$(SIDE_BY_SIDE)=3 test-ray test-engine test-others
else
	$(PYTEST) "not vllm" $(ARGS)
endif

# The files with a test of real time that is not slow; one session of Ray serves them all.
WITH_RAY := tests/loadgen/fleet/test_fleet.py tests/cluster/deployment/test_deploy.py \
	$(addprefix tests/end_to_end/test_,faults.py whole_sweep.py)
test-ray: $(STAMP)
	$(PYTEST) "$(REAL) and not slow" $(WITH_RAY)

# What computes gives way to the lane of real time, whose windows are void where a send is late.
test-engine test-others: $(STAMP)
	@nice -n 10 $(subst @,,$(PYTEST)) "$(FAST)" $(if $(filter %-engine,$@),$(ENGINE),$(OTHERS))

STUTTERED := $(addprefix tests/,loadgen/fleet loadgen/drive loadgen/run analysis/live)
test-stutter: $(STAMP)  ## what may trust a clock, where processes stand still for 2.2 of 3.2 seconds beside one that burns a core
	@$(BIN)/python -m tests.support.machine.stutter --burners 1 -- \
	$(BIN)/python -m pytest -q -m "$(FAST)" $(if $(filter tests/%,$(ARGS)),,$(STUTTERED)) $(ARGS)

# Hosts mostly wait: two clusters of them run side by side.
HOSTS := cluster faults
test-hosts: $(STAMP) $(VENV)/.compiled  ## Ray on five hosts of network namespaces, whose cables are cut: Linux and root, eight minutes
	$(SIDE_BY_SIDE)=2 $(HOSTS:%=test-hosts-%)

test-hosts-cluster test-hosts-faults: $(STAMP)
	$(PYTEST) hosts tests/hosts/$(@:test-hosts-%=test_%).py $(ARGS)

# --- everything: each lane leaves its output in LOGS, and a line of each is printed at the end ---
LOGS := build/tests
# Two lanes of real time would make each other's clocks late: one runs after the other, and what computes gives way.
# Among what computes are tests of Ray and vLLM in which no window must be valid: they wait as long as it takes.
REAL_TIME := all-hosts all-ray-end-to-end all-ray-loadgen all-vllm-real-time all-vllm-hosts all-older-real-time
COMPUTING := all-vllm all-engine all-others all-ray-others all-planted all-older all-stutter all-check
LANES := $(HOSTS:%=all-hosts-%) $(filter-out all-hosts,$(REAL_TIME)) $(COMPUTING)
RUN_LANES = $(subst @,,$(SIDE_BY_SIDE))

test-all: $(STAMP) $(VLLM_STAMP) $(VLLM_VENV)/vllm-$(VLLM_OLDER) browser  ## everything, half an hour or more: every fault, two vLLMs, browsers, planted faults; before an issue is called done
	@rm -rf $(LOGS)
	@$(RUN_LANES)=1 --keep-going $(REAL_TIME) & \
	nice -n 10 $(RUN_LANES)=2 --keep-going $(COMPUTING); code=$$?; wait $$! || code=$$?; \
	for lane in $(LANES); do printf '%-20s %s\n' $$lane "$$(tail -n 1 $(LOGS)/$$lane.log)"; done; exit $$code

$(LANES): | $(LOGS)
$(LOGS):
	mkdir -p $@

.PHONY: $(LANES) all-hosts $(HOSTS:%=test-hosts-%) $(addsuffix -engine,quick test) $(addsuffix -others,quick test) test-ray
all-%: SHELL := /bin/bash
all-%: .SHELLFLAGS := -o pipefail -c
EVERYTHING = --no-skips 2>&1 | tee $(LOGS)/$@.log
all-engine all-others: $(STAMP)
	$(PYTEST) "not $(REAL) and not vllm" $(if $(filter %-engine,$@),$(ENGINE),$(OTHERS)) $(EVERYTHING)

# Only files with such tests: to import all others takes seconds in each lane.
REAL_IN = $(sort $(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.\(ray\|live\)' $(1)))
JOBS := tests/cluster/test_jobs.py
# One session of Ray serves the first two of them.
STANDING := $(addprefix tests/end_to_end/test_,conversations_sweep.py whole_sweep.py)
END_TO_END = $(STANDING) $(filter-out $(STANDING),$(call REAL_IN,tests/end_to_end))
all-ray-loadgen all-ray-end-to-end: $(STAMP)
	$(PYTEST) "$(REAL)" $(if $(filter %-loadgen,$@),$(call REAL_IN,tests/loadgen $(JOBS)),$(END_TO_END)) $(EVERYTHING)

ELSEWHERE := tests/loadgen tests/end_to_end tests/vllm tests/hosts
all-ray-others: $(STAMP)
	$(PYTEST) "$(REAL)" $(filter-out $(JOBS),$(call REAL_IN,$(filter-out $(ELSEWHERE),$(wildcard tests/*)))) $(EVERYTHING)

all-hosts: $(STAMP) $(VENV)/.compiled
	@$(RUN_LANES)=2 --keep-going $(HOSTS:%=$@-%)

all-hosts-cluster all-hosts-faults: $(STAMP)
	$(PYTEST) hosts tests/hosts/$(@:all-hosts-%=test_%).py $(EVERYTHING)

all-stutter all-check: $(STAMP)
	@$(MAKE) --no-print-directory $(if $(filter %-check,$@),check,test-stutter) 2>&1 | tee $(LOGS)/$@.log

# Other twenty after each commit, and the list as a whole must fit the code.
all-planted: $(STAMP)
	@$(BIN)/python -m tests.benchmarks.planted_faults --sample 20 --seed $$((0x$$(git rev-parse --short=7 HEAD))) 2>&1 | tee $(LOGS)/$@.log

VLLM_TEST = $(VLLM_BIN)/python -m pytest -q -W ignore -m
test-vllm: $(VLLM_STAMP)  ## real vLLM in its own environment, three minutes; or what ARGS="..." names
	@$(VLLM_TEST) "$(if $(ARGS),vllm,vllm and not slow)" $(if $(filter tests/%,$(ARGS)),,tests/vllm) $(ARGS)

# Held to a clock: the pace of an emulated engine, and loads of which one must be valid.
VLLM_REAL_TIME := $(addprefix tests/vllm/test_,agreement.py deployed.py emulated.py)
all-vllm-real-time: $(VLLM_STAMP)
	@$(VLLM_TEST) vllm $(VLLM_REAL_TIME) $(EVERYTHING)

all-vllm-hosts: $(VLLM_STAMP)
	@$(VLLM_TEST) vllm tests/hosts/test_vllm.py $(EVERYTHING)

all-vllm: $(VLLM_STAMP)
	@$(VLLM_TEST) vllm tests/vllm $(addprefix --ignore=,$(VLLM_REAL_TIME)) $(EVERYTHING)

# What an older vLLM may do otherwise: its flags, its scheduler, what it asks of emulated GPUs, and one deployment
# that is loaded. What our side does with a vLLM that runs is the same for each, and the newest shows it.
OLDER := $(addprefix tests/vllm/test_,recipes.py quantization.py same_steps.py bench_arrivals.py without_avx512.py)
OLDER_REAL_TIME := $(addprefix tests/vllm/test_,emulated.py deployed.py::test_what_runs_is_read_back \
	deployed.py::test_a_probe_is_valid_and_agrees_with_vllms_own_counters)
all-older all-older-real-time: $(VLLM_VENV)/vllm-$(VLLM_OLDER)
	@PYTHONPATH=$(CURDIR)/$< $(VLLM_TEST) vllm $(if $(filter %-time,$@),$(OLDER_REAL_TIME),$(OLDER)) $(EVERYTHING)

browser:  ## Chromium, in which the report is looked at, and the shells of the README's commands; make test-all needs them
	@which chromium fish zsh > /dev/null \
	|| { test $$(id -u) = 0 && timeout 300 sh -c '$(FROM_DEBIAN)'; } \
	|| echo "no Chromium, fish or zsh on the PATH: make test-all fails without them"

$(VLLM_STAMP): pyproject.toml $(VLLM_LOCKS)
	$(ENVIRONMENT) vllm $(VLLM_VENV)
	@touch $@

$(VLLM_VENV)/vllm-%: $(VLLM_STAMP)
	$(ENVIRONMENT) vllm==$* $@
	@touch $@

vllm: $(VLLM_STAMP)  ## an environment with vLLM's CPU build: .venv-vllm/bin/python -m loadgen sweep engine=vllm_cpu ...

check: $(STAMP)  ## format, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(STAMP)  ## speed, as ratios; prints the machine's load beside every figure
	for name in client_rate data_path engine_speed parquet; do $(BIN)/python -m tests.benchmarks.$$name || exit 1; done

readme: $(STAMP)  ## the answer and the picture in README.md, of the run in tests/data
	$(BIN)/python -m tests.support.runs.readme_sample

lock: $(STAMP)  ## pin what pyproject.toml asks for, with hashes; versions stay where they can, ARGS=--upgrade renews them
	$(COMPILE) $(EXTRAS:%=--extra %) pyproject.toml --output-file requirements.lock
	for file in $(VLLM_LOCKS); do sed -n 's/^\([^ ]*==[^\\]*\).*/\1/p' $$file | $(COMPILE) --no-deps - --output-file $$file || exit 1; done

dist: $(STAMP)  ## the wheel and the sdist, in dist/; needs no network
	rm -rf build/bdist.* build/lib dist
	$(BIN)/uv build --quiet --offline --no-build-isolation --python $(BIN)/python --out-dir dist

notebook: $(STAMP)  ## JupyterLab on the notebooks: right-click a file, Open With, Notebook
	$(BIN)/python -c 'import jupyterlab, nbconvert' 2> /dev/null \
	|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --editable '.[notebook]'
	$(BIN)/jupyter lab $(ARGS) analysis/notebooks

clean:  ## this checkout's environments, caches and build leftovers; runs/ stays, and ~/.cache/maxqps, which rm -rf removes
	rm -rf $(VENV) $(VLLM_VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
