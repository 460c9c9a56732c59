# Needs Python 3.11 or newer with pip, and make. Everything else goes into .venv.

PYTHON ?= python3
PY := .venv/bin/python
# The path is in the stamp, so that a copied tree does not test the tree it was copied from.
STAMP := .venv/.ready-$(shell printf '%s' "$(CURDIR)" | cksum | cut -d' ' -f1)
TYPED := src tests $(wildcard benchmarks examples scripts)

# One short test file for each layer, beside those of the core.
SMOKE := tests/storage/test_conformance_reading.py tests/engine/test_facade.py \
  tests/engine/test_results.py tests/web/test_openapi.py tests/web/test_api_schedules.py \
  tests/cli/test_run_commands.py tests/testing/test_kit_determinism.py tests/telemetry \
  tests/prove
# More processes than cores, because many tests wait for other processes.
CORES := $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 8))' 2>/dev/null || echo 2)
SPREAD := --dist worksteal -n $(CORES)
SPREAD_WIDELY := --dist worksteal -n $(shell expr $(CORES) \* 2 + 2)

.PHONY: help quick test prove check demo bench docs format lock dist clean

help:
	@echo "make quick    lint, types, imports, the core and a smoke test of each layer (a minute)"
	@echo "make test     everything that must pass before a change lands (10 minutes on two cores)"
	@echo "make prove    list the long campaigns; CAMPAIGN=name runs one, or continues it"
	@echo "make check    only lint, types and imports (seconds)"
	@echo "make demo     watch one run live through a crash"
	@echo "make bench    measure Perdure beside its peers (BENCH=--quick: a minute or two)"
	@echo "make docs     regenerate the generated pages"
	@echo "make format   let ruff arrange the code"
	@echo "make lock     pin what a release is built and installed with, with hashes"
	@echo "make dist     build wheel and sdist with nothing but the pinned files"
	@echo "make clean    remove .venv and every cache"

quick: check
	@PERDURE_HYPOTHESIS_PROFILE=quick $(PY) -m pytest -q $(SPREAD) tests/core $(SMOKE)

# The core alone, because tracing its branches would slow down everything else.
test: check
	@$(PY) -m pytest -q $(SPREAD) --cov --cov-report=term tests/core
	@$(PY) -m pytest -q $(SPREAD_WIDELY) --ignore=tests/core

prove: $(STAMP)
	@PYTHONPATH=tests $(PY) -m prove $(CAMPAIGN) $(if $(SEED),--seed $(SEED)) \
	  $(if $(SIZE),--size $(SIZE)) $(if $(DATABASE),--database $(DATABASE)) $(if $(FRESH),--fresh)

check: $(STAMP)
	@$(PY) -m ruff format --check --quiet . || { echo "Not formatted. Run: make format"; exit 1; }
	@$(PY) -m ruff check --quiet .
	@$(PY) -m mypy --no-error-summary $(TYPED)
	@$(PY) .venv/bin/lint-imports --no-logo
	@echo "Format, lint, types and imports: fine."

demo: $(STAMP)
	@$(PY) examples/demo.py

bench: $(STAMP)
	@$(PY) -m benchmarks $(BENCH)

docs: $(STAMP)
	@$(PY) scripts/generate_docs.py

format: $(STAMP)
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

# Both need only Python and pip, no .venv.
lock:
	@$(PYTHON) scripts/lock_release.py

dist:
	@$(PYTHON) scripts/build_release.py

clean:
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage .prove dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian without python3-venv cannot put pip into a venv; its own pip can install into one.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Perdure needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@echo "Setting up .venv with the test tools and PostgreSQL (once, under a minute) ..."
	@test -x $(PY) || $(PYTHON) -m venv .venv >/dev/null 2>&1 \
	  || $(PYTHON) -m venv --clear --without-pip .venv
	@if $(PY) -m pip --version >/dev/null 2>&1; then pip="$(PY) -m pip"; \
	  else pip="$(PYTHON) -m pip --python $(PY)"; fi; \
	$$pip install --disable-pip-version-check --no-input -e '.[test]' >.venv/install.log 2>&1 \
	  || { tail -n 30 .venv/install.log; echo "The installation failed; all of it: .venv/install.log"; exit 1; }
	@touch $@
