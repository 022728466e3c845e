# Two commands: `make demo` and `make test`. The virtual environment is made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check pythons bench screenshots clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml agent/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("bsmon needs Python 3.10 or newer; name one: make PYTHON=python3.12")'
	@echo "bsmon: making $(VENV), with torch in it (once; a minute or two)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet -c constraints.txt -e ./agent -e '.[dev,demo]'
	@touch $(READY)

demo: $(READY)
	@$(BIN)/bsmon demo

test: check
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# What needs no torch, on every other Python that is found here.
pythons:
	.ci/pythons

bench: $(READY)
	@$(PIP) install --quiet -c constraints.txt tensorboard
	$(BIN)/python benchmarks/agent_overhead.py
	$(BIN)/python benchmarks/latency.py

screenshots: $(READY)
	$(BIN)/python screenshots/make.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
