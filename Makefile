PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --constraint constraints.txt --editable

.PHONY: demo test browser lint bench evidence docs figures pictures notebooks drill recipes lock clean

$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) '.[train]'
	touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) '.[test,docs]'
	touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) '.[bench]'
	touch $@

$(VENV)/.dev: $(VENV)/.test
	$(PIP) '.[dev]'
	touch $@

demo: $(VENV)/.core  ## the main job on the embedded default
	$(BIN)/covis demo -o demo

browser:  ## Chromium from the system's packages, for the test that looks at a report
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null 2>&1 \
	  || { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] \
	       && { apt-get install --yes --quiet chromium >/dev/null 2>&1 \
	            || { apt-get update --quiet >/dev/null 2>&1 && apt-get install --yes --quiet chromium >/dev/null 2>&1; }; }; } \
	  || echo "no Chromium here: install it with your system's packages (such as: sudo apt-get install chromium)"

# two workers: libraries that start a thread per CPU in each would wait for one another
test: export OMP_NUM_THREADS = 1
test: $(VENV)/.test browser
	$(BIN)/pytest -n 2 --dist loadfile -m "not drill and not recipes"

recipes: $(VENV)/.test  ## one step of every recipe; `make test` takes one per dataset, sampler and loss
	$(BIN)/pytest -n 2 -m recipes

drill: $(VENV)/.test  ## long drills: kills, power failures, damage, bad input, load (hours)
	$(BIN)/pytest -m drill

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests benchmarks evidence docs/*.py
	$(BIN)/ruff format --check src tests benchmarks evidence docs/*.py
	$(BIN)/mypy

# A benchmark that makes its own data and measures time or memory is in SPEED. One that measures recalls or calibration, or needs
# photographs that are not public, is in EVIDENCE; without them it says that nothing is measured.
SPEED := market inference training ranks packing labels surface sampling losses loading metadata scoring embed search engines \
         service whitening scale
EVIDENCE := agreement calibration compass inliers local locate own_map pose

bench: $(VENV)/.bench  ## speed, as ratios against a peer in the same run where there is one, and the pages with its figures (about an hour and a half)
	for name in $(SPEED); do $(BIN)/python benchmarks/bench_$$name.py || exit 1; done
	$(BIN)/python docs/measured.py

evidence: $(VENV)/.bench  ## recalls and calibration on photographs, and the pages with their figures (hours)
	for name in $(EVIDENCE); do $(BIN)/python -m evidence.bench_$$name || exit 1; done
	$(BIN)/python -m evidence.bench_local --benchmark town --whiten 0 --topic local_town
	$(BIN)/python docs/measured.py

docs: $(VENV)/.test
	$(BIN)/mkdocs build --strict

lock: $(VENV)/.dev  ## versions of this environment with hashes, into requirements.lock
	sed -i '/^[^#]/d' requirements.lock
	$(BIN)/pip list --format freeze --exclude-editable | grep -v -E '^(pip|setuptools)==' | sed 's/+cpu$$//' > $(VENV)/tested.txt
	$(BIN)/uv pip compile --quiet pyproject.toml --extra test --constraint $(VENV)/tested.txt --universal --python-version 3.11.5 \
	  --generate-hashes --no-annotate --no-header >> requirements.lock

figures: $(VENV)/.core  ## measured figures into the pages
	$(BIN)/python docs/measured.py

pictures: $(VENV)/.test browser  ## screenshots of the pages, from the product itself (some 20 minutes, then only what is missing)
	$(BIN)/python docs/pictures.py

notebooks: $(VENV)/.dev  ## outputs of the notebooks (some 5 minutes)
	$(BIN)/python docs/notebooks.py

clean:
	rm -rf $(VENV) demo site pictures-work
