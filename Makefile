# Two commands, no set-up before them: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_OPTIONS := --quiet --disable-pip-version-check

.PHONY: demo test lint types unit benchmark clean

demo: $(VENV)/.installed
	$(BIN)/python examples/digits.py

test: lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/basedpyright --pythonpath $(BIN)/python

unit: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

benchmark: $(VENV)/.installed
	$(BIN)/python benchmarks/polar.py

# An environment that already has torch in the supported range can be used as it is: make VENV=path/to/it test
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt torch
	$(BIN)/python -m pip install $(PIP_OPTIONS) -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis dist
