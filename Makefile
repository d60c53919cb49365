# Everything a contributor runs. `make` alone lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup run demo test test-slow test-compiled check bench bench-spark torture \
	powerloss sabotage spark-kill spark-zip load fuzz docs release clean

VENV := .venv
BIN := $(VENV)/bin
FUZZ_SECONDS ?= 60
KILLS ?= 200
RUNS ?= 10
SLOW ?= tests
SPARK_KILLS ?= 12
LOAD_SECONDS ?= 60
SEED ?= 1
HOST ?= 127.0.0.1
PORT ?= 1883
DATA ?= fleetmq-data

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.product  ## make .venv and install FleetMQ with its tools into it

# Runs again only when pyproject.toml has changed.
$(VENV)/.ready: pyproject.toml
	@set -e; \
	right='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
		if $$python -c "$$right" >/dev/null 2>&1; then \
			echo "setup: $$($$python --version) in $(VENV)"; \
			$$python -m venv --clear $(VENV); \
			exec $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'; \
		fi; \
	done; \
	echo "setup: FleetMQ needs Python 3.11 or newer with venv; found: $$(python3 --version 2>&1)." \
		"Install one and say which: make setup PYTHON=/path/to/python3.11" >&2; \
	exit 1
	@touch $@

# `.venv/bin/fleetmq`: the product, compiled where there is a C compiler. The tests run on the
# working tree itself and do not need it.
SOURCES := $(shell find mqtt_broker sessions qos iot_sim spark_ingest -name '*.py')
$(VENV)/.product: $(VENV)/.ready deploy/compile.py $(SOURCES)
	@$(BIN)/python deploy/compile.py
	@touch $@

# The tools alone, so that a compiled product stays where it is.
$(VENV)/.docs: $(VENV)/.ready
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])' | \
		xargs $(BIN)/python -m pip install --quiet --disable-pip-version-check
	@touch $@

$(VENV)/.fuzz: $(VENV)/.ready
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	@rm -f $(VENV)/.product  # the working tree stands in its place now
	@touch $@

run: setup  ## run a broker on 127.0.0.1:1883, its state in fleetmq-data (HOST=, PORT=, DATA=)
	@exec $(BIN)/fleetmq broker --host $(HOST) --port $(PORT) --data-dir $(DATA)

demo: setup  ## the whole story in a minute: devices, a kill -9, the log, Spark, and a verdict
	@$(BIN)/fleetmq demo

# Many tests wait for a disk or another process: two workers a core take less time than one.
test: $(VENV)/.ready  ## run the fast tests on all cores
	@$(BIN)/python -m pytest -q -n $$((2 * $$(nproc))) -m 'not slow'

# One after the other: most of them keep a JVM, a database or both cores busy by themselves.
test-slow: $(VENV)/.ready  ## run the slow tests of SLOW (tests), one after the other
	@$(BIN)/python -m pytest -q -m slow $(SLOW)

# Not those that replace what is inside a module: compiled code calls it all the same.
test-compiled: setup  ## run the protocol's tests on the compiled product
	@rm -rf build/proof && mkdir -p build/proof && cp -r tests pyproject.toml build/proof
	@cd build/proof && python="$(CURDIR)/$(BIN)/python" && \
		$$python -c 'import mqtt_broker.core.inbound.publish as m; print("testing", m.__file__)' && \
		$$python -m pytest -q -n auto -m 'not slow' \
		--ignore tests/spec/test_rules.py --ignore tests/core/test_calls.py \
		--ignore tests/core/test_journal_faults.py --ignore tests/server/test_own_mistakes.py \
		--ignore tests/sessions/store/test_store_views.py \
		-k 'not busy_loop and not our_mistake' \
		tests/spec tests/codec tests/qos tests/topics tests/sim tests/server \
		tests/sessions tests/core tests/streams

check: $(VENV)/.ready  ## format, lint, types and the rules of the code
	@$(BIN)/ruff format --check --quiet . || \
		{ $(BIN)/ruff format --diff . 2>&1 | tail -n 60; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/house

bench: setup  ## measure the broker beside others on this machine
	@$(BIN)/python tests/bench/run.py

torture: setup  ## kill the broker KILLS times under load (200), PostgreSQL a quarter as often, and count
	@$(BIN)/python -m tests.fault.torture --kills $(KILLS) --seed $(SEED) \
		--database sqlite --command $(BIN)/fleetmq
	@$(BIN)/python -m tests.fault.torture --kills $$((($(KILLS) + 3) / 4)) --seed $(SEED) \
		--database postgresql --command $(BIN)/fleetmq

powerloss: $(VENV)/.ready  ## cut the power at 400 moments of each of RUNS runs of the broker (10), and count
	@$(BIN)/python -m tests.powerloss.run --seeds $(RUNS) --start $(SEED)
	@$(BIN)/python -m tests.powerloss.restarts --start $(SEED)

sabotage: $(VENV)/.ready  ## put known defects back, one after the other, and see that the searches find each
	@$(BIN)/python -m tests.sabotage --seeds 10

spark-kill: setup  ## kill Spark's drivers SPARK_KILLS times (12) around their commits, and executors, and count
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS)
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --cluster
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --broker
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --broker --http --cluster

spark-zip: $(VENV)/.ready  ## pack the code that Spark's executors need, for --py-files
	@$(BIN)/python deploy/spark_zip.py

bench-spark: setup  ## measure the Spark job and the source, beside from_json
	@PYTHONPATH=. $(BIN)/python tests/bench/spark_job.py
	@PYTHONPATH=. $(BIN)/python tests/bench/spark.py

load: setup  ## load a broker with Locust's users for LOAD_SECONDS seconds (60); a failed request fails it
	@$(BIN)/python tests/bench/load.py --command $(BIN)/fleetmq --seconds $(LOAD_SECONDS)

# Targets begin with the inputs that tests/fuzz keeps, and with what they learned the last time, which
# stays in build/fuzz. What a target finds stays here as crash-*.
fuzz: $(VENV)/.fuzz  ## fuzz every target for FUZZ_SECONDS seconds (60), from SEED (1)
	@set -e; shopt -s nullglob; targets=(tests/fuzz/fuzz_*.py); \
	[ $${#targets[@]} -gt 0 ] || { echo "fuzz: no tests/fuzz/fuzz_*.py" >&2; exit 1; }; \
	mkdir -p build/fuzz; $(BIN)/python -m tests.fuzz.seeds build/fuzz; \
	for target in "$${targets[@]}"; do \
		echo "fuzz: $$target for $(FUZZ_SECONDS) s"; \
		learned=build/fuzz/$$(basename "$$target" .py); mkdir -p "$$learned"; \
		PYTHONPATH=. $(BIN)/python "$$target" -max_total_time=$(FUZZ_SECONDS) -timeout=20 -seed=$(SEED) \
			-verbosity=0 -print_final_stats=1 "$$learned" 2>build/fuzz/log || \
			{ tail -n 60 build/fuzz/log >&2; exit 1; }; \
		grep -h number_of_executed_units build/fuzz/log; \
	done

docs: $(VENV)/.docs  ## write docs/reference from the code, and build the site into build/site
	@PYTHONPATH=. $(BIN)/python deploy/reference.py
	@PYTHONPATH=deploy $(BIN)/python -m mkdocs build --strict --config-file deploy/mkdocs.yml
	@echo "docs: build/site/index.html"

# Uploads nothing: docs/RELEASING.md says what follows.
release: check test docs  ## check version and change log, and build the archive and the wheel into dist/
	@$(BIN)/python deploy/release.py

clean:  ## remove .venv and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
