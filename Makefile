# Each target does its own set-up: on a fresh machine `make study` or `make test` is all there is to type.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
RUN    := $(VENV)/.run

.PHONY: setup check test test-real bench bench-read bench-train lab variants study papers film figures clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anchorwatch needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY) $(RUN)

# What a study takes, and no more.
$(RUN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "anchorwatch needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(READY) || ANCHORWATCH_WITHOUT_PAGE=1 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[run]'
	touch $(RUN)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n 2 -m "not real"

test-real: $(READY)
	$(BIN)/python tests/real/fetch.py .real
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m real tests/real

film: $(READY)
	$(BIN)/python docs/film.py

bench: $(READY)
	$(BIN)/python benchmarks/attention.py

bench-read: $(READY)
	$(BIN)/python benchmarks/metrics.py

bench-train: $(READY)
	$(BIN)/python benchmarks/training.py

lab: $(READY)
	$(BIN)/python recipes/lab.py

variants: $(READY)
	$(BIN)/python recipes/variants.py

figures: $(READY)
	$(BIN)/python docs/gallery.py

# 3 says that some claims lack something: the pages say what
papers: $(READY)
	$(BIN)/anchorwatch study --budget standard -o runs/papers || test $$? -eq 3
	$(BIN)/python docs/papers.py runs/papers

study: $(RUN)
	$(BIN)/anchorwatch study --budget quick -o runs/study || test $$? -eq 3

clean:
	rm -rf $(VENV) .real dist build
