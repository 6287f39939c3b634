# `make demo` and `make test` need Python >= 3.11, make and a compiler; everything else they install into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# The real engine of `make test-engine` has an environment of its own.
ENGINE_PYTHON ?= $(PYTHON)

$(VENV)/.installed: pyproject.toml setup.py $(wildcard protos/*.proto)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

.PHONY: env demo test test-h2 fuzz test-engine lint bench clean
env: $(VENV)/.installed

demo: env
	$(BIN)/eluvix-extproc demo $(DEMO_ARGS)

lint: env
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 $(TEST_ARGS)

# Every end-to-end test on our own HTTP/2 in the place of grpc.aio.
test-h2: env
	ELUVIX_SERVER_TRANSPORT=h2 $(BIN)/pytest -n 2 tests/e2e $(TEST_ARGS)

# A million random HTTP/2 frames: a quarter of an hour.
fuzz: env
	$(BIN)/python -m tests.wire.h2.fuzz $(FUZZ_ARGS)

test-engine: env
	$(ENGINE_PYTHON) tests/engine/install.py
	$(BIN)/pytest tests/engine $(TEST_ARGS)

bench: env
	$(BIN)/eluvix-extproc bench $(BENCH_ARGS)

clean:
	rm -rf $(VENV) .venv-engine build *.egg-info
