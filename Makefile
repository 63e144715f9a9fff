# `make` lists the commands. They need Python 3.11 or newer, git and make, and install into .venv what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests examples benchmarks tools
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# The quick tests: the loop, its points and requests, the layout, and what every callback must hold; few processes.
QUICK := tests/engine tests/execution/test_bit_equal.py tests/execution/test_bit_equal_fit.py \
  tests/execution/test_plain_step.py tests/execution/test_host_waits.py tests/registration tests/replay tests/foundation \
  tests/test_best.py tests/test_clock.py tests/test_declared.py tests/test_explain.py tests/test_generated.py \
  tests/test_history.py tests/test_house.py tests/test_imports.py tests/test_missing_packages.py \
  tests/test_trainer_arguments.py tests/test_when.py \
  tests/callbacks/test_every_argument.py tests/callbacks/test_unneeded_points.py \
  --ignore tests/engine/test_properties.py --ignore tests/engine/test_memory.py --deselect tests/test_imports.py::test_training_needs_torch_alone

.PHONY: help train quick test test-all coverage mutants lint types tests quick-tests generate bench clean
.DEFAULT_GOAL := help

help:  ## lists these commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */make \1|/' | column -t -s '|'

train: $(VENV)/.examples  ## trains a classifier on handwritten digits and prints its accuracy
	$(BIN)/python examples/00_digits.py

quick: lint  ## what to run before a commit: format, lint, types and the quick tests, in a minute
	@$(MAKE) --no-print-directory --jobs 2 types quick-tests

test: lint types tests  ## format, lint, types and all tests but the long ones

test-all: lint types  ## also the long tests
	$(PYTEST)

coverage: $(VENV)/.test  ## all tests but the long ones, and how much of the source they run
	$(PYTEST) -m "not long" --cov cadenza --cov-report term:skip-covered

mutants: $(VENV)/.test  ## changes the source in 160 places and lists the changes that no test notices; takes an hour
	$(BIN)/python tools/mutate.py --results $${TMPDIR:-/tmp}/cadenza-mutants.jsonl

lint: $(VENV)/.test
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)

types: $(VENV)/.test
	$(BIN)/mypy

tests: $(VENV)/.test
	$(PYTEST) -m "not long"

quick-tests: $(VENV)/.test
	$(PYTEST) -q -m "not long" $(QUICK)

generate: $(VENV)/.test  ## writes the stubs and pages that are made from the code
	$(BIN)/python tools/generate.py
	$(BIN)/ruff format --quiet src/cadenza/_stubs.py

bench: $(VENV)/.examples  ## measures the loop against a hand-written one
	$(BIN)/python benchmarks/overhead.py

clean:  ## removes the environment and all caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage

# One stamp for each group of packages; the test group includes what the examples need.
$(VENV)/.examples $(VENV)/.test: pyproject.toml constraints.txt
	@if ! $(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then \
	  echo "$(or $(PYTHON),nothing) is not Python 3.11 or newer, which Cadenza needs; name one: make train PYTHON=python3.12" >&2; exit 1; fi
	@$(PYTHON) tools/install.py $(VENV) $(patsubst .%,%,$(notdir $@))
	@touch $@ $(if $(filter %.test,$@),$(VENV)/.examples)
