# Needs python3, pip and make. Everything is installed into one virtual environment, .venv; each target makes what it
# needs the first time and starts at once from then on.

PYTHON ?= python3
VENV ?= .venv
DEMO ?= sentiment
WORKERS ?= 2
KILLS ?= 500

BIN := $(VENV)/bin
XLA_VENV := $(VENV)-xla
# Tests share the cores among WORKERS processes, so each takes one thread; nothing may reach for a model hub.
TEST_ENVIRONMENT := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false

.PHONY: help demo test slow tasks downstream crash distributed distributed-short xla browser trackers lint format types architecture bench clean

help:
	@echo "make demo           fine-tune a model and try it (DEMO=sentiment, digits, text or names)"
	@echo "make test           the fast tests"
	@echo "make lint           ruff: rules and format        make format  apply them"
	@echo "make types          mypy --strict over src"
	@echo "make architecture   budgets, layers, public surface"
	@echo "make slow           slow, crash and multi-process tests"
	@echo "make tasks          a model for each task trains on real data to its metric (ten minutes)"
	@echo "make downstream     TRL, sentence-transformers and PEFT on kunren, against transformers (ten minutes)"
	@echo "make crash          500 kills, and a fault at every system call of a save (KILLS=500; five minutes)"
	@echo "make distributed    real processes over gloo, on every engine (eight minutes); make distributed-short: what CI runs"
	@echo "make xla            tests on XLA's CPU device, in an environment of their own (7 GB)"
	@echo "make browser        the pages of reports in headless Chromium (apt-get install chromium fonts-noto-cjk)"
	@echo "make trackers       tests of the experiment trackers that are installed"
	@echo "make bench          the benchmarks, against their peers"

demo: $(VENV)/installed
	HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/kunren demo $(DEMO)

test: $(VENV)/installed
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -n $(WORKERS)

slow: $(VENV)/installed-slow
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -m "slow or crash or distributed"

tasks: $(VENV)/installed-slow
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -s -m slow tests/tasks

downstream: $(VENV)/installed-slow
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "slow or distributed or not slow" tests/downstream

crash: $(VENV)/installed
	KUNREN_KILLS=$(KILLS) $(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "crash or not crash" tests/crash

distributed: $(VENV)/installed-distributed
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "distributed or not distributed" tests/distributed

distributed-short: $(VENV)/installed-distributed
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "distributed and not slow" tests/distributed

xla: $(XLA_VENV)/installed
	$(TEST_ENVIRONMENT) $(XLA_VENV)/bin/python -m pytest -q -m xla tests/xla

browser: $(VENV)/installed
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q -m "slow or not slow" tests/browser

trackers: $(VENV)/installed-trackers
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -m trackers

lint: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(VENV)/installed
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(VENV)/installed
	$(BIN)/mypy

architecture: $(VENV)/installed
	$(TEST_ENVIRONMENT) $(BIN)/python -m pytest -q tests/architecture

bench: $(VENV)/installed-bench
	for script in $$(grep -l __main__ benchmarks/*.py); do HF_HUB_OFFLINE=1 $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) $(XLA_VENV) runs .mypy_cache .pytest_cache .ruff_cache .hypothesis

# Some systems ship Python without ensurepip; the pip beside it then fills the environment.
make_environment = $(PYTHON) -m venv $(1) || { \
		$(PYTHON) -m venv --clear --without-pip $(1) && \
		$(PYTHON) -m pip --python $(1)/bin/python install --quiet pip; }

$(VENV)/installed-torch:
	@$(PYTHON) -c 'import sys; sys.exit("kunren is developed on Python 3.11 or newer, and $(PYTHON) is " \
		+ sys.version.split()[0] + ": name another with make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(call make_environment,$(VENV))
	$(BIN)/python -m pip install --quiet torch==2.13.0
	touch $@

$(VENV)/installed: $(VENV)/installed-torch requirements-dev.txt requirements-demo.txt pyproject.toml
	$(BIN)/python -m pip install --quiet -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-demo.txt
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

$(VENV)/installed-slow: $(VENV)/installed requirements-slow.txt
	$(BIN)/python -m pip install --quiet -r requirements-slow.txt
	touch $@

$(VENV)/installed-distributed: $(VENV)/installed requirements-distributed.txt
	$(BIN)/python -m pip install --quiet --no-deps -r requirements-distributed.txt
	touch $@

$(VENV)/installed-trackers: $(VENV)/installed requirements-trackers.txt
	$(BIN)/python -m pip install --quiet -r requirements-trackers.txt
	touch $@

$(VENV)/installed-bench: $(VENV)/installed requirements-bench.txt
	$(BIN)/python -m pip install --quiet -r requirements-bench.txt
	touch $@

$(XLA_VENV)/installed: requirements-xla.txt
	$(call make_environment,$(XLA_VENV))
	$(XLA_VENV)/bin/python -m pip install --quiet -r requirements-xla.txt
	touch $@
