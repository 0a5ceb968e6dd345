# Two commands, no set-up before them: make demo, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types unit docs benchmark clean

demo: $(VENV)/.installed
	$(BIN)/replastic sweep experiments/quick.toml --out runs/quick
	$(BIN)/replastic report runs/quick --out runs/quick-page

test: lint types unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/basedpyright --pythonpath $(BIN)/python

unit: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

docs: $(VENV)/.installed
	$(BIN)/zensical build --strict

benchmark: $(VENV)/.installed
	$(BIN)/python benchmarks/polar.py

# The pins are for an empty environment. One that has torch in the supported range keeps it: make VENV=path/to/it test
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	if $(BIN)/python -c "import torch" 2>/dev/null; then pins=; else pins="-c constraints.txt"; fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $$pins -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .cache site dist
