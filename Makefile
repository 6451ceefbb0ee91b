PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench docs drill clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## the main job on the embedded default
	$(BIN)/covis demo -o demo

test: $(STAMP)  ## quick suite first, then the slow one
	$(BIN)/pytest -n 2 -m "not slow and not drill"
	$(BIN)/pytest -n 2 -m "slow and not drill"

drill: $(STAMP)  ## long fault and scale drills
	$(BIN)/pytest -m drill

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

bench: $(STAMP)  ## every benchmark, as ratios against a peer in the same run
	for file in benchmarks/bench_*.py; do $(BIN)/python $$file || exit 1; done

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) demo site
