# The two commands of the README, and the ones CI and developers use.
SHELL := /bin/bash
PYTHON ?= python3
# A relative path, so that a checkout below a folder with a space works in every rule.
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Two `make` at once in a fresh checkout share one .venv: the second waits, and then finds everything done.
ALONE := $(PYTHON) requirements/alone.py

.PHONY: demo test lint bench soak mutants lock clean help

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

demo:  ## start everything on loopback, run the main job, show the results
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.local
	@$(BIN)/python examples/demo.py --with-parent $(ARGS)

test:  ## run every test
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.dev
	@$(BIN)/python tests/support/tools.py
	@$(BIN)/python -m pytest $(ARGS)

lint:  ## ruff, mypy, import contracts
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench:  ## measure, and print the tables of docs/reference/benchmarks.md
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.dev
	@$(BIN)/python -m bench $(ARGS)

soak:  ## run the fault lab at length: 20 seeds x 200 jobs, every fault
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.dev
	@$(BIN)/python -m tests.faults --seeds 1-20 --jobs 200 --minutes 2 --gap 1.5 $(ARGS)

mutants:  ## take protections away one at a time; the fault lab must notice each
	@$(ALONE) $(MAKE) -s --no-print-directory $(VENV)/.dev
	@$(BIN)/python -m tests.faults.mutants $(ARGS)

lock: $(VENV)/.uv  ## write requirements/*.txt again from pyproject.toml
	@for set in uv local dev; do ./requirements/lock.sh $$set; done

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.uv: requirements/uv.txt
	@echo "Making the virtual environment .venv ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Tidemill needs Python 3.11 or newer; say which with: make PYTHON=python3.12"; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { echo "Python's venv is needed; on Debian and Ubuntu: apt install python3-venv"; rm -rf $(VENV); exit 2; }
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@touch $@

$(VENV)/.local: $(VENV)/.uv requirements/local.txt pyproject.toml
	@echo "Installing the locked packages (about 90 MB the first time) ..."
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements/local.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.local requirements/dev.txt
	@echo "Installing the tools for tests and linting ..."
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@
