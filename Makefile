# Everything runs in the project's own virtual environment; a bare machine needs CPython 3.11 and pip only.
PYTHON ?= python3.11
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check bench docs install clean

demo: .venv/installed ## train on a real log, with and without deduplication, and survive a lost shard
	$(BIN)/recoup demo $(ARGS)

test: .venv/installed ## run every test, two at once
	$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder $(ARGS)

check: .venv/installed ## format, lint, types, floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

bench: .venv/installed ## every bench in its quick form
	for name in storage reader trainer end_to_end ladder dedup worth checkpoint recovery emulate scale kafka iid; do \
	  $(BIN)/python -m benches.$$name --quick || exit 1; done

docs: .venv/installed ## the documentation as HTML, warnings are errors
	$(PIP) -c requirements/constraints.txt -r requirements/docs.txt
	$(BIN)/python -m sphinx -W -q docs docs/_build

install: .venv/installed

.venv/installed: pyproject.toml $(wildcard requirements/*.txt)
	$(PYTHON) -m venv .venv
	$(PIP) "pip==25.3"
	$(PIP) -c requirements/constraints.txt -r requirements/runtime.txt -r requirements/dev.txt
	$(PIP) --no-deps -r requirements/engine.txt -r requirements/demo.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv
