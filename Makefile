# make run and make test do all their set-up themselves, in .venv; nothing else on the machine is touched,
# except that a missing python3-venv is installed where that is allowed.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
PINS := --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet
SOURCES := src tests examples benchmarks

.PHONY: help run test lint bench soak servers peers constraints clean
.DEFAULT_GOAL := help

help:
	@echo 'make run          a live demo on SQLite: processes contend, one is killed, one is frozen'
	@echo 'make test         all tests, long ones with a tenth of their counts'
	@echo 'make soak         all tests with full counts'
	@echo 'make lint         style, types and layers'
	@echo 'make bench        the published figures, each beside its floor'
	@echo 'make servers      install the servers the tests start, where that is allowed'
	@echo 'make constraints  choose new versions for requirements/*.txt'
	@echo 'make clean        remove .venv and everything built'

run: .venv/.run
	@$(BIN)/python examples/demo/demo.py

test: .venv/.dev .venv-peers/.made servers
	@$(BIN)/python -m pytest

soak: .venv/.dev .venv-peers/.made servers
	@LEASEHOLD_SOAK=1 $(BIN)/python -m pytest -o timeout=1800 --durations=20

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(if $(wildcard tests/typing),$(BIN)/mypy --strict tests/typing)
	$(BIN)/lint-imports
	@echo 'basedpyright --verifytypes leasehold'
	@found=$$(PATH="$(CURDIR)/$(BIN):$$PATH" basedpyright --verifytypes leasehold --ignoreexternal) || \
		{ echo "$$found"; exit 1; }

bench: .venv/.dev .venv-peers/.made servers
	@$(BIN)/python -m benchmarks

constraints: .venv/.made
	$(PIP) install 'uv>=0.9'
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev $(PINS) --upgrade --output-file requirements/dev.txt
	$(BIN)/uv pip compile pyproject.toml requirements/install.in -c requirements/dev.txt $(PINS) --output-file requirements/run.txt
	$(BIN)/uv pip compile requirements/peers.in $(PINS) --upgrade --output-file requirements/peers.txt

clean:
	rm -rf .venv .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache benchmarks/results
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Everything that was checked is pinned by hash; Leasehold itself is linked, not copied.
.venv/.run: .venv/.made requirements/run.txt pyproject.toml
	@echo 'Installing what Leasehold needs to run ...'
	@$(PIP) install --require-hashes -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

.venv/.dev: .venv/.made requirements/dev.txt requirements/run.txt pyproject.toml
	@echo 'Installing what Leasehold needs to be tested ...'
	@$(PIP) install --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch .venv/.run $@

# What Leasehold is measured against, and stands for election with, lives apart: nothing of it is needed to run Leasehold.
peers: .venv-peers/.made
.venv-peers/.made: requirements/peers.txt | .venv/.made
	@echo 'Installing what Leasehold is measured against and stands for election with ...'
	@$(PYTHON) -m venv --clear .venv-peers
	@.venv-peers/bin/python -m pip --quiet --disable-pip-version-check --no-input install --require-hashes -r $<
	@touch $@

# Real servers, from the system's packages; the tests start them privately.
servers:
	@scripts/install-servers

# Debian and Ubuntu keep the part of Python that makes environments in a package of its own.
.venv/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Leasehold needs Python 3.11 or newer: make PYTHON=/path/to/python3.12 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || $(MAKE) --no-print-directory python3-venv
	@rm -rf .venv
	@echo 'Creating .venv ...'
	@$(PYTHON) -m venv .venv
	@touch $@

.PHONY: python3-venv
python3-venv: COMMAND = apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y python3-venv
python3-venv:
	@if ! command -v apt-get >/dev/null; then \
		echo 'python3 cannot make virtual environments here: install its venv and ensurepip modules.' >&2; exit 1; \
	elif [ "$$(id -u)" = 0 ]; then \
		echo 'Installing python3-venv ...'; { $(COMMAND); } >/dev/null; \
	elif sudo -n true 2>/dev/null; then \
		echo 'Installing python3-venv ...'; sudo -n sh -c '$(COMMAND)' >/dev/null; \
	else \
		echo 'python3-venv is missing. Run this, then make again:' >&2; \
		echo '    sudo apt-get update && sudo apt-get install -y python3-venv' >&2; exit 1; \
	fi
