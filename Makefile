# Each target carries its own help line after "##".
PYTHON ?= python3
PIP_ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format shards

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make the environment in .venv (PIP_ARGS="--index-url …" chooses e.g. CPU wheels)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable ".[dev]"
	touch $@

test: $(READY) ## run all tests
	$(BIN)/python -m pytest

lint: $(READY) ## ruff (format and lint) and mypy --strict
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
