PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test browser lint bench docs drill clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## the main job on the embedded default
	$(BIN)/covis demo -o demo

browser:  ## Chromium from the system's packages, for the test that looks at a report
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null 2>&1 \
	  || { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] \
	       && { apt-get install --yes --quiet chromium >/dev/null 2>&1 \
	            || { apt-get update --quiet >/dev/null 2>&1 && apt-get install --yes --quiet chromium >/dev/null 2>&1; }; }; } \
	  || echo "no Chromium here: install it with your system's packages (such as: sudo apt-get install chromium)"

test: $(STAMP) browser  ## quick suite first, then the slow one
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
