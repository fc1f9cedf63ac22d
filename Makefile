# Every target does its own set-up (tools/setup) and is quick about it when nothing changed.
.DEFAULT_GOAL := help
.PHONY: help demo test unit soak check bench format claims api lock clean

BIN := .venv/bin
# tests/conftest.py says what stays together. Many tests wait, but unit tests only compute.
PYTEST := $(BIN)/python -m pytest

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## run the demonstration: a bank that never stops, its snapshots, proofs and Spark tables
	@tools/setup demo
	@$(BIN)/strobe demo

test: ## run every test; a skipped test fails the run
	@tools/setup test
	@$(PYTEST) -n 4

unit: ## run the unit tests: half a minute
	@tools/setup test
	@$(PYTEST) -n 2 --unit

soak: ## ten minutes of faults: kills, stops, resets, full disks, garbage, members that come and go
	@tools/setup test
	@$(BIN)/python -m tests.live.soak --minutes 10

check: ## lint, format, types, import rules, claims and reference: seconds
	@tools/setup check
	@tools/check

bench: ## run the measurements
	@tools/setup test
	@$(BIN)/python -m bench

format: ## put the code in its format
	@tools/setup check
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

claims: ## write docs/claims.md from docs/promises.toml and the tests
	@tools/setup check
	@$(BIN)/python tools/claims.py

api: ## write docs/api.md from the docstrings
	@tools/setup check
	@$(BIN)/python tools/api.py

lock: ## write the lock files from pyproject.toml (UPGRADE=1: with the newest versions)
	@tools/setup check
	@tools/lock $(if $(UPGRADE),--upgrade)

clean: ## remove the virtual environment, caches and what demo and bench wrote
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist
	rm -rf strobe-demo spark-warehouse metastore_db derby.log bench/results.json
	find src tests tools bench examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
