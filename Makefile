PYTHON ?= python3
ARGS ?=
JOB ?= engine

# Some containers say that no bytecode is to be written. Then every process that the tests start compiles all modules
# anew, ours and JAX's: 2.4 instead of 1.0 s of processor time for a first run.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# Stamps, so that set-up happens once, and again only when these files change.
READY := $(VENV)/.stamp-run
READY_DEV := $(VENV)/.stamp-dev
READY_BENCH := $(VENV)/.stamp-bench
READY_DOCS := $(VENV)/.stamp-docs
READY_RELEASE := $(VENV)/.stamp-release
INPUTS := pyproject.toml constraints.txt
# Files that touch every dependency, and need no other: oracles are not installed for them.
LOWEST := tests/cli/test_cli_commands.py tests/cli/test_cli_run.py tests/cli/test_new.py tests/data/test_files.py \
  tests/estimators/test_estimators_sklearn.py tests/networks/test_graphs.py tests/privacy/test_accounting.py \
  tests/report/test_plots.py tests/statistics/test_sums.py tests/statistics/test_table_one.py tests/test_run.py

.DEFAULT_GOAL := help
.PHONY: help run setup test test-all coverage mutants test-lowest test-torch check release bench bench-peers scoreboard docs docs-check clean compiled

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' Makefile

run: $(READY) ## set up, then run the main job (fedpoint lab; options in ARGS)
	$(BIN)/fedpoint lab $(ARGS)

setup: $(READY_DEV) ## install the package with its development tools into .venv

test: $(READY_DEV) ## check, then run the tests and doctests (options in ARGS)
	@$(MAKE) --no-print-directory -j2 check compiled
	$(BIN)/python -m pytest $(ARGS)

test-all: check ## every test, slow ones included, file by file; goes on where it was interrupted (benchmarks/SLOW.md)
	$(BIN)/python tests/every_test.py $(ARGS)

coverage: $(READY_DEV) ## which lines of the package do the tests reach, in one process? (tests in ARGS; half as long again)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade --target build/coverage coverage==7.17.3
	-PYTHONPATH=build/coverage $(BIN)/python -m coverage run --data-file=build/coverage/data --source=fedpoint -m pytest -n 0 -q $(ARGS)
	PYTHONPATH=build/coverage $(BIN)/python -m coverage report --data-file=build/coverage/data --skip-covered

mutants: $(READY_DEV) ## make 300 small mistakes in the package and see which of them the tests notice (benchmarks/MUTANTS.md)
	$(BIN)/python tests/package_mutants.py $(ARGS)

# Types are checked on one core; on the other one all modules and tests are compiled, which the two processes of the
# tests would otherwise both do.
compiled: $(READY_DEV)
	-@$(BIN)/python -m pytest --collect-only -q -n 0 >/dev/null

test-lowest: ## run some tests with the lowest versions that pyproject.toml allows (below build/lowest)
	$(PYTHON) -m venv --clear build/lowest
	$(PYTHON) release/lowest.py > build/lowest/requirements.txt
	build/lowest/bin/python -m pip install -q --disable-pip-version-check -r build/lowest/requirements.txt
	PYTHONPATH=src build/lowest/bin/python -m pytest -n 0 -q -o addopts= -o filterwarnings=default -m "not slow" $(LOWEST) $(ARGS)

test-torch: ## install PyTorch below build/torch, and run its tests (options in ARGS)
	test -e build/torch/.stamp || $(PYTHON) -m venv --clear build/torch
	build/torch/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[torch]' pytest pytest-xdist hypothesis
	@touch build/torch/.stamp
	build/torch/bin/python -m pytest -n 0 -q -p no:cacheprovider tests/pytorch $(ARGS)

check: $(READY_DEV) ## format, lint, spelling, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

release: $(READY_RELEASE) ## build, inspect, install the wheel in a clean environment and use it there (below build)
	rm -rf build/dist build/clean
	$(BIN)/python -m build -q --outdir build/dist
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist/*.whl
	$(PYTHON) release/contents.py build/dist
	$(PYTHON) -m venv build/clean
	build/clean/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt build/dist/*.whl
	release/use.sh build/clean/bin

bench: $(READY_BENCH) ## install the bench extra, then time the engine (JOB=alarm, cluster, federation, forecast, lsa, networks, tables: those)
	$(BIN)/python benchmarks/$(JOB).py $(ARGS)

scoreboard: $(READY) ## install other frameworks below build/peers, certify their methods and mechanisms (benchmarks/SCOREBOARD.md)
	$(BIN)/python benchmarks/peers/scoreboard.py $(ARGS)

bench-peers: $(READY) ## install other frameworks below build/peers, measure fedpoint beside them (benchmarks/RESULTS.md)
	$(BIN)/python benchmarks/peers $(ARGS)

docs: $(READY_DOCS) ## install the docs extra, then build the documentation site into build/site (strict)
	$(BIN)/mkdocs build --strict

docs-check: docs ## build the site, then look at every page of it with Chromium (pictures in build/look)
	$(BIN)/python docs/look_at_pages.py $(ARGS)

clean: ## remove caches and build products (keeps .venv and runs)
	rm -rf build dist src/*.egg-info benchmarks/.build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +

# A stamp rather than pyvenv.cfg: that file is there even if venv stopped half-way.
$(VENV)/.stamp-venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedpoint needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "Name a newer one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(READY): $(VENV)/.stamp-venv $(INPUTS)
	$(INSTALL) -e .
	@touch $@

# An extra brings the plain install with it, hence the second stamp. Most modules of the tools are never imported:
# compiling them all takes a third of the time.
$(READY_DEV): $(VENV)/.stamp-venv $(INPUTS)
	$(INSTALL) --no-compile -e '.[dev]'
	@touch $@ $(READY)

$(READY_BENCH): $(VENV)/.stamp-venv $(INPUTS)
	$(INSTALL) -e '.[bench]'
	@touch $@ $(READY)

$(READY_DOCS): $(VENV)/.stamp-venv $(INPUTS)
	$(INSTALL) -e '.[docs]'
	@touch $@ $(READY)

$(READY_RELEASE): $(VENV)/.stamp-venv $(INPUTS)
	$(INSTALL) -e '.[release]'
	@touch $@ $(READY)
