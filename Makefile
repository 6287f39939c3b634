# `make demo` and `make test` need Python >= 3.11, make and a compiler; everything else they install into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

$(VENV)/.installed: pyproject.toml setup.py $(wildcard protos/*.proto)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.PHONY: env demo test lint check bench clean docs
env: $(VENV)/.installed

demo: env
	$(BIN)/eluvix-extproc demo $(DEMO_ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 $(TEST_ARGS)

bench: env
	$(BIN)/eluvix-extproc bench $(BENCH_ARGS)

clean:
	rm -rf $(VENV) build *.egg-info
