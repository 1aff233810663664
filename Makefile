# Everything lives in .venv: `make demo` and `make test` work from a clean clone with python3, make and a compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.ready
SLURM := .engines/slurm
RAY := .engines/ray

# Python keeps compiled modules, whatever the caller's environment says: tests start hundreds of Python processes.
export PYTHONDONTWRITEBYTECODE =

.PHONY: venv demo test test-browser test-long test-engines engines fast check bench soak soak-live repro repro-record grounds mutants docs clean

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
	$(BIN)/python -m pytest -n 3 -m 'not engines' --part rest -p no:schemathesis

# The rest of the tests: references solved by other programs, published results, real training.
test-long: $(STAMP)
	$(BIN)/python -m pytest -n 3 -m 'not engines' --part long tests

# The tests on real engines, as root, those of Slurm beside those of Ray; both are started and stopped by the tests.
# Nothing is installed in the system.
test-engines: $(STAMP) engines
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m engines tests/provider

# Slurm for the tests: Debian's packages, unpacked below .engines with lists and caches of their own. The daemons find
# their own names in argv[0] only without Debian's suffix -wlm.
engines: $(SLURM)/.ready $(RAY)/.ready

# Ray for the tests: from PyPI, in an environment of its own, which Shoal's own environment does not import.
$(RAY)/.ready:
	rm -rf $(RAY)
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --disable-pip-version-check 'ray==2.60.*'
	touch $@

APT := apt-get -qq -y -o Dir::State::Lists=$(CURDIR)/$(SLURM).apt/lists -o Dir::Cache=$(CURDIR)/$(SLURM).apt \
	-o APT::Sandbox::User=root -o Acquire::Retries=3

$(SLURM)/.ready:
	rm -rf $(SLURM) $(SLURM).apt
	mkdir -p $(SLURM) $(SLURM).apt/lists/partial $(SLURM).apt/archives/partial
	$(APT) update
	$(APT) install --no-install-recommends --reinstall --download-only \
		slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge
	for package in $(SLURM).apt/archives/*.deb; do dpkg -x $$package $(SLURM) || exit 1; done
	for daemon in slurmctld slurmd slurmstepd; do ln -s $$daemon-wlm $(SLURM)/usr/sbin/$$daemon || exit 1; done
	rm -rf $(SLURM).apt
	touch $@

# The cluster's page in a real Chromium; needs Debian's package `chromium` (installed here where apt-get may).
test-browser: $(STAMP)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }
	$(PIP) '.[browser]'
	$(BIN)/python -m pytest tests/browser/browse.py tests/browser/browse_report.py

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

# Every table and figure of the papers, in JOBS processes, and one page of them, repro.html. Results are kept in
# repro.jsonl, so a stopped run resumes. DATA is the folder of public traces, e.g. `make repro DATA=../data`; what lacks
# its traces is reported at the end. The grounds are left out: all policies on all workloads take a day of CPU time.
JOBS ?= 2
REPRO := $(BIN)/shoal repro run --jobs $(JOBS) --out repro.jsonl $(if $(DATA),--data $(DATA))

REPRO_PAGES := reproductions.md cloud.md shockwave.md fidelity.md

repro: $(STAMP)
	$(REPRO) '*' --without 'grounds*' --html repro.html > repro.txt

# The same from the kept results, with the verdicts and tables of the documentation written anew.
repro-record: $(STAMP)
	$(REPRO) '*' --without 'grounds*' --html repro.html $(addprefix --page docs/,$(REPRO_PAGES)) \
		--record src/shoal/research/repro/recorded.json > repro.txt
	$(BIN)/python docs/test_docs.py

grounds: $(STAMP)
	$(REPRO) 'grounds*' --draws held

# Mutation tests of core, engine, live, store and policy/base, in an environment of their own (an older pytest); hours on
# two cores. Results are kept in mutants/, so a stopped run resumes.
mutants:
	$(PYTHON) -m venv .venv-mutants
	.venv-mutants/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[mutants]'
	.venv-mutants/bin/python tests/mutants.py

# The documentation site, written to site/.
docs: $(STAMP)
	$(PIP) '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) .engines .venv-mutants mutants site .mypy_cache .ruff_cache .pytest_cache build dist
