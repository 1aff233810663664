# Everything lives in .venv: `make demo` and `make test` work from a clean clone with python3, make and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.ready

.PHONY: venv demo test fast check bench soak soak-live repro mutants docs clean

venv: $(STAMP)

# What `shoal demo` imports: the control plane and what it decides with; no Parquet, no PyTorch, no test tools. Modules
# are compiled when they are first imported, not here: most never are.
$(RUNTIME): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) '.[server]' --no-compile
	touch $(RUNTIME)

$(STAMP): $(RUNTIME)
	$(PIP) '.[dev]'
	touch $(STAMP)

demo: $(RUNTIME)
	$(BIN)/shoal demo

# Three workers for two cores: tests of real processes mostly wait.
test: check
	$(BIN)/python -m pytest -n 3

# The tests that need no processes, no PyTorch and no long searches: under a minute of CPU time.
fast: $(STAMP)
	$(BIN)/python -m pytest -m fast

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(PIP) '.[research]'
	$(BIN)/shoal bench

# A million faults of the control plane, agents and keepers in virtual time; hours of CPU time, on all cores. Progress is
# kept in soak.json, so a stopped run resumes.
soak: $(STAMP)
	$(BIN)/python -m tests.dst.soak --faults 1000000

# A thousand faults of real processes, about half an hour: processes are killed and connections cut.
soak-live: $(STAMP)
	$(BIN)/python -m tests.e2e.soak --trials 525

# Every table and figure of the papers; hours. Results are kept in repro.jsonl, so a stopped run resumes.
# DATA is the folder of public traces, e.g. `make repro DATA=../data`.
repro: $(STAMP)
	$(BIN)/shoal repro run '*' --out repro.jsonl $(if $(DATA),--data $(DATA))

# Mutation tests of core, engine, live, store and policy/base, in an environment of their own (an older pytest).
mutants:
	$(PYTHON) -m venv .venv-mutants
	.venv-mutants/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	-.venv-mutants/bin/mutmut run
	.venv-mutants/bin/python tests/mutants.py

# The documentation site, written to site/.
docs: $(STAMP)
	$(PIP) '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .venv-mutants mutants site .mypy_cache .ruff_cache .pytest_cache build dist
