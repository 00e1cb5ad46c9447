# Each target carries its own help line after "##".
PYTHON ?= python3
PIP_ARGS ?=
JOBS ?= 2
SEED ?= 0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_COUNT ?= 700
DEMO_FIT ?=
DEMO_TEACHER := --teacher veca.teachers.EfficientNetTeacher
DEMO_STUDENT := --model demo/run/multires/checkpoints/last.ckpt
DEMO_PROBE := --budgets 8,32,64 --resolutions 64 --seeds 1
DEMO_IMAGE = $$(ls demo/sample/images/val/*/*.jpg | head -n 1)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-slurm lint format docs shards bench bench-check torture torture-short

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(READY) ## make the environment in .venv (PIP_ARGS="…" goes to pip, e.g. to choose CPU wheels)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable ".[dev]"
	touch $@

test: $(READY) ## run the tests, in JOBS=2 processes
	$(BIN)/python -m pytest -m "not torture and not packaging" --numprocesses $(JOBS)

test-all: $(READY) ## the same, and those that build, install and try what is published
	$(BIN)/python -m pytest -m "not torture" --numprocesses $(JOBS)

test-slurm: $(READY) ## the tests that need a SLURM; `.ci/slurm make test-slurm` starts one here (root, Debian)
	$(BIN)/python -m pytest -m "slurm and not torture"

lint: $(READY) ## ruff (format and lint) and mypy --strict
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## let ruff rewrite what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY) ## the documentation as a site, in site/
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable ".[docs]"
	$(BIN)/mkdocs build --strict

shards: $(READY) ## images or archives to shards: SOURCE=… OUT=… [ARGS="--max-short-side 864"]
	@test -n "$(SOURCE)" && test -n "$(OUT)" || { echo 'usage: make shards SOURCE=images OUT=data/images [ARGS="…"]'; exit 2; }
	$(BIN)/veca data shards "$(SOURCE)" --out "$(OUT)" $(ARGS)

demo: $(READY) ## the packaged model at work, then a distillation from images to report, on the CPU (minutes)
	$(BIN)/veca data sample --out demo/sample --count $(DEMO_COUNT) --size 128
	$(BIN)/veca figures contributions $(DEMO_IMAGE) --budgets 8,32,64 --resolution 256 --method pca --out demo/nano/contributions.png
	$(BIN)/veca figures cores $(DEMO_IMAGE) --resolution 256 --out demo/nano/cores.png
	$(BIN)/veca probe knn demo/sample/images --model nano $(DEMO_PROBE) --out demo/nano/knn.json
	@echo "The packaged model on the sample images: demo/nano/*.png, and what it costs and gives per budget: demo/nano/knn.md"
	$(BIN)/veca data shards demo/sample/images --out demo/shards
	$(BIN)/veca data cache demo/shards $(DEMO_TEACHER) --resolutions 64 --views 4 --dtype int8
	$(BIN)/veca data cache demo/shards $(DEMO_TEACHER) --resolutions 64,96 --views 1 --dtype int8
	$(BIN)/veca fit --config demo $(DEMO_FIT)
	$(BIN)/veca fit --config demo_multires $(DEMO_FIT)
	$(BIN)/veca probe knn demo/sample/images $(DEMO_STUDENT) $(DEMO_PROBE) --out demo/run/knn.json
	$(BIN)/veca probe linear demo/sample/images $(DEMO_STUDENT) $(DEMO_PROBE) --out demo/run/linear.json
	$(BIN)/veca probe segment demo/sample $(DEMO_STUDENT) $(DEMO_PROBE) --epochs 2 --out demo/run/segment.json
	$(BIN)/veca probe depth demo/sample $(DEMO_STUDENT) $(DEMO_PROBE) --epochs 2 --out demo/run/depth.json
	$(BIN)/veca report demo/run

bench: $(READY) ## all benchmarks as one table and bench.json, every number a ratio taken in one run
	$(BIN)/veca bench all

bench-check: $(READY) ## the same, failing where a ratio lost 15 % against docs/bench.json
	$(BIN)/veca bench check

torture: $(READY) ## the long fault campaign: 200 drawn cases (SEED=0), 5,000 damaged files, all that is marked torture
	TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -m torture

torture-short: $(READY) ## each fault of that campaign once, with SEED=0 (minutes)
	TORTURE_SEED=$(SEED) TORTURE_CASES=15 $(BIN)/python -m pytest -m torture tests/torture
