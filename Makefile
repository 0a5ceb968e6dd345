# No set-up is needed first: make demo, make quick, make test.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# One thread per process, since two workers share two cores. Bytecode is written even where the environment forbids it: dozens of
# tests start a process, and each would compile the package again.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n 2 --dist worksteal
DOCS_TESTS := $(addprefix tests/test_,docs.py site.py reference.py code_blocks.py notebooks.py)

.PHONY: demo quick test lint types unit docs package benchmark clean

demo: $(VENV)/.installed
	$(BIN)/replastic sweep experiments/quick.toml --out runs/quick
	$(BIN)/replastic report runs/quick --out runs/quick-page

quick: $(VENV)/.installed
	$(PYTEST) -m "not slow"

test: lint types unit docs

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/basedpyright --pythonpath $(BIN)/python

unit: $(VENV)/.installed
	$(PYTEST) $(DOCS_TESTS:%=--ignore=%)

docs: $(VENV)/.installed
	$(BIN)/zensical build --strict
	SITE=$(CURDIR)/site $(PYTEST) $(DOCS_TESTS)

package: $(VENV)/.installed
	rm -rf dist
	$(BIN)/python -m build

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
