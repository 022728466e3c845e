# Two commands: `make demo` and `make test`. The virtual environment is made on first use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench screenshots clean
.DEFAULT_GOAL := demo

$(READY): pyproject.toml agent/pyproject.toml constraints.txt
	@echo "bsmon: making $(VENV) (once; a minute or two)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e ./agent -e '.[dev,demo]'
	@touch $(READY)

demo: $(READY)
	$(BIN)/bsmon demo

test: check
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt tensorboard
	$(BIN)/python benchmarks/agent_overhead.py
	$(BIN)/python benchmarks/latency.py

screenshots: $(READY)
	$(BIN)/python screenshots/make.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
