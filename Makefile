# Everything a contributor runs. `make` alone lists the targets.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup install compile wheels lock run demo test test-examples test-slow test-browser test-compiled \
	test-ranges test-wheel check bench bench-fair bench-spark torture powerloss soak sabotage cluster-sim cluster-torture spark-kill \
	spark-zip load fuzz docs release clean

VENV := .venv
WORLD ?= hosts
BIN := $(VENV)/bin
FAULTS ?= 200
FUZZ_SECONDS ?= 60
KILLS ?= 200
RUNS ?= 10
SLOW ?= tests
SLOW_WORKERS ?= 0
SPARK_KILLS ?= 12
LOAD_SECONDS ?= 60
RANGE_SECONDS ?= 1800
SEED ?= 1
SEEDS ?= 1000
SOAK_PART ?= 16
HOST ?= 127.0.0.1
PORT ?= 1883
DATA ?= fleetmq-data
ARGS ?=

help:  ## list the targets
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.dev $(VENV)/.compiled  ## install what every target needs, and the product compiled

# What was asked to compile and cannot fails; other targets go on with what runs interpreted.
compile: REQUIRE := --require
compile: $(VENV)/.compiled  ## build the packages that do the work to C: three times as fast
	@$(BIN)/fleetmq --version | grep -F '(compiled)' || \
		{ echo "compile: FleetMQ is interpreted: rm $(VENV)/.compiled, and try again" >&2; exit 1; }

# Each file stands for a step that is done, and is as new as it.
$(VENV)/.python:
	@set -e; \
	right='import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))'; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
		if $$python -c "$$right" >/dev/null 2>&1; then \
			echo "setup: making $(VENV) with $$($$python --version)"; \
			$$python -m venv --clear $(VENV); \
			touch $@; \
			exit 0; \
		fi; \
	done; \
	echo "setup: FleetMQ needs Python 3.11 or newer with venv; found: $$(python3 --version 2>&1)." \
		"Install one and say which: make run PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(VENV)/.broker $(VENV)/.dev $(VENV)/.demo $(VENV)/.docs $(VENV)/.fuzz: $(VENV)/.%: \
		$(VENV)/.python pyproject.toml deploy/constraints.txt
	@$(BIN)/python deploy/install.py $*
	@touch $@

# `.venv/bin/fleetmq` is the working tree, which runs interpreted, or a compiled copy of it.
$(VENV)/.tree: $(VENV)/.broker
	@$(BIN)/python deploy/install.py --tree
	@rm -f $(VENV)/.compiled
	@touch $@

SOURCES := $(shell find mqtt_broker sessions qos iot_sim spark_ingest -name '*.py')
$(VENV)/.compiled: $(VENV)/.broker deploy/compile.py $(SOURCES)
	@$(BIN)/python deploy/install.py build
	@$(BIN)/python deploy/compile.py $(REQUIRE)
	@rm -f $(VENV)/.tree
	@touch $@

# Installs the working tree, unless the compiled copy is there and as new as its sources.
install: $(VENV)/.broker  ## install the broker alone into .venv: the working tree, or the compiled copy of it
	@$(MAKE) --no-print-directory --question $(VENV)/.compiled 2>/dev/null || \
		$(MAKE) --no-print-directory --silent $(VENV)/.tree

run: install  ## run a broker on 127.0.0.1:1883, its state in fleetmq-data (HOST=, PORT=, DATA=, ARGS=)
	@[ -e $(VENV)/.compiled ] || \
		echo "run: interpreted; 'make compile' makes it three times as fast, with a C compiler and a minute"
	@case "$(HOST)/$(ARGS)" in 127.*|localhost/*|::1/*|*/?*) ;; *) \
		echo "run: HOST=$(HOST) lets other machines in: ARGS=--allow-anonymous lets everybody log in," \
			"ARGS='--config fleet.toml' those whom the file knows" ;; esac
	@exec $(BIN)/fleetmq broker --host $(HOST) --port $(PORT) --data-dir $(DATA) $(ARGS)

demo: install $(VENV)/.demo  ## the whole story in a minute: devices, a kill -9, the log, Spark, and a verdict
	@$(BIN)/fleetmq demo

# Tests start hundreds of processes: without bytecode on disk each compiles all it imports.
test test-slow test-browser test-compiled test-ranges test-wheel check: export PYTHONDONTWRITEBYTECODE =

# Many tests wait for a disk or another process: two workers a core take less time than one.
# The rules of the code are `make check`: what they parse stays, and each search for garbage in
# the tests behind them would go through it.
test: install $(VENV)/.dev  ## run the fast tests on all cores
	@$(BIN)/python -m pytest -q -n $$((2 * $$(nproc))) --dist worksteal -m 'not slow' --ignore tests/house

# `make test` tries a quarter of them.
test-examples test-slow: export TESTS_EXAMPLES = all
test-examples: $(VENV)/.dev  ## try every property of the fast tests with all its examples
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m 'hypothesis and not slow'

# One after the other: most of them keep a JVM, a database or both cores busy by themselves.
test-slow: $(VENV)/.dev  ## run the slow tests of SLOW (tests), in SLOW_WORKERS processes (one)
	@$(BIN)/python -m pytest -q -n $(SLOW_WORKERS) --dist worksteal -m slow $(SLOW)

# They skip, with the reason, where there is no chromium with chromedriver.
test-browser: $(VENV)/.dev  ## test the operators' page in a headless Chromium
	@$(BIN)/python -m pytest -q tests/page

# Not those that replace what is inside a module: compiled code calls it all the same.
test-compiled: setup  ## run the protocol's tests on the compiled product
	@rm -rf build/proof && mkdir -p build/proof && cp -r tests pyproject.toml build/proof
	@cd build/proof && python="$(CURDIR)/$(BIN)/python" && \
		$$python -c 'import mqtt_broker.core.inbound.publish as m; print("testing", m.__file__)' && \
		$$python -m pytest -q -n auto --dist worksteal -m 'not slow' \
		--ignore tests/spec/test_rules.py --ignore tests/core/test_calls.py \
		--ignore tests/core/test_journal_faults.py --ignore tests/server/test_own_mistakes.py \
		--ignore tests/sessions/store/test_store_views.py \
		-k 'not busy_loop and not our_mistake' \
		tests/spec tests/codec tests/qos tests/topics tests/sim tests/server \
		tests/sessions tests/core tests/streams tests/test_in_process.py tests/test_testing.py \
		tests/test_support

# aiohttp's fast frame parser is not in the lowest version; the listener does without it.
# test_other_systems imports every module, and so needs every extra.
RANGE_TESTS := tests/client tests/server tests/http_api tests/security tests/sessions/store tests/test_in_process.py
test-ranges: $(VENV)/.python  ## test the lowest and the newest versions that the broker's requirements allow
	@set -e; mkdir -p build; \
	$(BIN)/python deploy/lowest.py > build/lowest.txt; : > build/newest.txt; \
	for end in lowest newest; do \
		echo "test-ranges: the $$end versions, in build/$$end"; \
		$(BIN)/python -m venv --clear build/$$end; \
		build/$$end/bin/python deploy/install.py --range build/$$end.txt; \
		fast=; [ $$end = newest ] || fast="--ignore tests/server/net/test_websocket_aiohttp.py \
			--ignore tests/server/net/test_websocket_fallback.py"; \
		timeout $(RANGE_SECONDS) build/$$end/bin/python -m pytest -q -n auto --dist worksteal -m 'not slow' $$fast \
			--ignore tests/server/test_other_systems.py $(RANGE_TESTS) || { code=$$?; \
			[ $$code != 124 ] || echo "test-ranges: the $$end versions took more than $(RANGE_SECONDS) s:" \
				"RANGE_SECONDS= allows more" >&2; exit $$code; }; \
	done

test-wheel: $(VENV)/.dev wheels  ## test the wheel, and the source archive with each Python here, in clean environments
	@$(BIN)/python -m pytest -q -m slow tests/install

check: $(VENV)/.dev  ## format, lint, types and the rules of the code
	@$(BIN)/ruff format --check --quiet . || \
		{ $(BIN)/ruff format --diff . 2>&1 | tail -n 60; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/house

bench: setup  ## measure the broker beside others on this machine
	@$(BIN)/python tests/bench/run.py

bench-fair: setup  ## measure how long others wait while one client asks for as much as it may
	@$(BIN)/python tests/bench/fair.py

torture: setup  ## kill the broker KILLS times under load (200), PostgreSQL a quarter as often, and count
	@$(BIN)/python -m tests.fault.torture --kills $(KILLS) --seed $(SEED) \
		--database sqlite --command $(BIN)/fleetmq
	@$(BIN)/python -m tests.fault.torture --kills $$((($(KILLS) + 3) / 4)) --seed $(SEED) \
		--database postgresql --command $(BIN)/fleetmq

powerloss: $(VENV)/.dev  ## cut the power at 400 moments of each of RUNS runs of the broker (10), and count
	@$(BIN)/python -m tests.powerloss.run --seeds $(RUNS) --start $(SEED)
	@$(BIN)/python -m tests.powerloss.restarts --start $(SEED)

# The defaults in a part, for SOAK_PART=1 takes six gigabytes; deploy/hardened.toml in full.
soak: setup  ## fill every limit in bytes at once by hostile clients, and compare the peak of the memory
	@$(BIN)/python -m tests.soak.run --part $(SOAK_PART) --command $(BIN)/fleetmq
	@$(BIN)/python -m tests.soak.run --config deploy/hardened.toml --command $(BIN)/fleetmq

sabotage: $(VENV)/.dev  ## put known defects back, one after the other, and see that the searches find each
	@$(BIN)/python -m tests.sabotage --seeds 10

cluster-sim: $(VENV)/.dev  ## play SEEDS (1000) worlds of the cluster's model, and take each of its rules out
	@$(BIN)/python -m tests.sim.cluster.run --seeds $(SEEDS)
	@$(BIN)/python -m tests.sim.cluster.ablations

cluster-torture: $(VENV)/.dev  ## let FAULTS faults (200) happen to processes of a cluster, and count
	@$(BIN)/python -m tests.cluster.torture --faults $(FAULTS) --seed $(SEED) --world $(WORLD)

spark-kill: setup  ## kill Spark's drivers SPARK_KILLS times (12) around their commits, and executors, and count
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS)
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --cluster
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --broker
	@$(BIN)/python -m tests.spark_ingest.killing --kills $(SPARK_KILLS) --broker --http --cluster

spark-zip: $(VENV)/.dev  ## pack the code that Spark's executors need, for --py-files
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

wheels: $(VENV)/.broker  ## build a compiled wheel for this Python, and the source archive, into dist/
	@$(BIN)/python deploy/install.py build
	@$(BIN)/python deploy/release.py --build

lock: $(VENV)/.dev $(VENV)/.demo $(VENV)/.docs $(VENV)/.fuzz  ## write what is installed to deploy/constraints.txt
	@$(BIN)/python deploy/install.py --lock

# Uploads nothing: docs/RELEASING.md says what follows.
release:  ## check version and change log, run check, test and docs, and build archive and wheel into dist/
	@$(BIN)/python deploy/release.py --check
	@$(MAKE) --no-print-directory check test docs
	@$(BIN)/python deploy/release.py

clean:  ## remove .venv and what tools left behind
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
