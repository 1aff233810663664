# Everything lives in .venv: `make test` and `make demo` work from a clean clone with python3, make and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready

.PHONY: venv demo test check bench soak repro clean

venv: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/shoal demo

test: check
	$(BIN)/python -m pytest -n 2

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	$(BIN)/shoal bench

# Two hundred trials of the fault test, about twelve minutes: things are killed and cut under a live cluster.
soak: $(STAMP)
	$(BIN)/python -m tests.e2e.soak

# Every table and figure of the papers, hours of it; what was measured is kept, so that it goes on where it was stopped.
repro: $(STAMP)
	$(BIN)/shoal repro run '*' --out repro.jsonl

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache build dist
