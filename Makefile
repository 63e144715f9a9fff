# Two commands need nothing but Python 3.11+, git and make: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: train test test-all lint types tests generate bench clean

train: $(STAMP)  ## trains a classifier on handwritten digits and says how good it is
	$(BIN)/python examples/00_digits.py

test: lint types tests  ## lint, types and all tests but the long ones

test-all: lint types  ## the long tests too
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(STAMP)
	$(BIN)/ruff format --check src tests examples benchmarks tools
	$(BIN)/ruff check src tests examples benchmarks tools

types: $(STAMP)
	$(BIN)/mypy

tests: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not long"

generate: $(STAMP)  ## writes what is made from the table of points
	$(BIN)/python tools/generate.py
	$(BIN)/ruff format --quiet src/cadenza/stubs.py

bench: $(STAMP)  ## what the loop costs against a hand-written one
	$(BIN)/python benchmarks/overhead.py

$(STAMP): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable ".[test]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
