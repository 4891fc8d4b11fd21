# `make` alone lists the targets. Everything is installed into .venv and nowhere else.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help venv quickstart test test-slow test-exhaustive check layout records docs clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

venv: $(STAMP) ## Make .venv and install hwnas into it (again when its requirements change)

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    given=$$( ("$(PYTHON)" --version || echo not there) 2>/dev/null ); \
	    echo "hwnas needs Python 3.11 or newer; $(PYTHON) is $$given." \
	      "Install one and name it: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }; \
	  "$(PYTHON)" -m venv .venv || exit 1; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

quickstart: $(STAMP) ## Search networks for this machine's CPU, on handwritten digits (some minutes)
	$(BIN)/hwnas search experiments/quickstart/recipe.toml

# One process a core; the tests of a file, which often share what they made, run in one of them.
pytest = $(BIN)/python -m pytest --numprocesses logical --maxprocesses 8 --dist loadfile \
  --max-worker-restart 0

test: $(STAMP) ## Run the quick tests (five minutes on two cores)
	$(pytest) -m "not slow and not exhaustive and not gpu"

test-slow: $(STAMP) ## Run the slower tests, and list the slowest: whole searches, exports, several processes
	$(pytest) --durations 30 -m "slow and not exhaustive and not gpu"

test-exhaustive: $(STAMP) ## Run further cases of what the other tests check, before a release
	HWNAS_TEST_EXAMPLES=200 $(pytest) -m "(exhaustive or hypothesis) and not gpu"

check: $(STAMP) layout records ## Check style, types, the direction of imports, and records
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

layout: $(STAMP) ## Check that the tree is as docs and CONTRIBUTING.md say
	$(BIN)/python -m pytest --quiet tests/test_layout.py

records: $(STAMP) ## Check that tables are as recorded, and where recorded figures come from
	$(BIN)/python -m experiments.readme_table --check
	$(BIN)/python -m experiments.check_records

docs: $(STAMP) ## Build the documentation as a site in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

clean: ## Remove caches and build products; .venv and runs stay
	rm -rf build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests experiments -name __pycache__ -type d -prune -exec rm -rf {} +
